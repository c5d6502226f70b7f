"""Small programs for this CPU, as functions of numpy arrays."""

import tvm
import tvm_ffi
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.device import parse


def compiled(params, compute):
    """Compile ``compute(*params)``, which returns an expression, for this CPU."""
    target = parse("cpu").tvm_target()
    with target:
        executable = tvm.compile(
            main_module(params, compute(*params)),
            target,
            relax_pipeline="tvm_fusion",
            tir_pipeline="tvm_fusion",
        )
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return lambda *arrays: machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def unbound(func):
    """A scheduled PrimFunc with loops in the place of threads, for CPUs."""

    def serial(loop):
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, serial), order="post"))
