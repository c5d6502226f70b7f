"""Small programs for this CPU, as functions of numpy arrays."""

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_fusion.device import parse


def compiled(params, compute):
    """Compile ``compute(*params)``, which returns an expression, for this CPU."""
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(compute(*params))
        builder.emit_func_output(result)
    target = parse("cpu").tvm_target()
    with target:
        executable = tvm.compile(
            builder.get(), target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
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
