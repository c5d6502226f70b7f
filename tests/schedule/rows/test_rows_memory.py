"""Intermediate results of a chain of row kernels take turns in two buffers."""

import tvm_ffi
from relax_modules import main_module
from tvm import ir, relax

from tests.schedule.rows.row_checks import cpu_target
from tvm_fusion.pipeline import relax_pipeline


def test_a_chain_takes_two_buffers():
    """And its result one: kernels read their operands again, so that none writes into its own."""
    x = relax.Var("x", relax.TensorType((512, 512), "float32"))

    def result(emit, *_):
        value = x
        for number in range(6):  # over other rows each time
            value = emit(relax.op.nn.softmax(value, number % 2))
        return value

    target = cpu_target()
    with target:
        planned = relax_pipeline(target=target)(main_module([x], result))
    calls = []
    tvm_ffi.structural_walk(planned["main"].body, (ir.Call, calls.append))
    names = [getattr(call.op, "name", "") for call in calls]
    assert names.count("relax.vm.alloc_tensor") == 6
    assert names.count("relax.vm.alloc_storage") == 3
