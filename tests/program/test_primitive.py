"""One PrimFunc of a whole group, by TVM's FuseTIR."""

import numpy as np
import tvm
from group_kernels import group, tensor
from tvm import relax

from tvm_fusion.program.primitive import merged

op = relax.op


def test_symbols_are_in_the_order_of_the_group():
    """FuseTIR's own order is another one from run to run, and was taken for the group's."""
    names = [f"s{i}" for i in range(6)]
    extents = [(tvm.tirx.Var(n, "int64") - 1) // 2 + 1 for n in names]
    x = tensor("x", *extents)

    def body(emit, x):
        return emit(op.exp(emit(op.add(x, relax.const(np.float32(1))))))

    found = group([x], body)
    func = merged(found)
    scalars = func.params[len(found.inputs) : len(found.inputs) + len(names)]
    assert [v.name for v in scalars] == [v.name for v in found.scalars] == names
