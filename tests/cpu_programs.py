"""Small Relax programs through the whole pipeline, as functions of numpy arrays."""

import tvm
from tvm import relax

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
