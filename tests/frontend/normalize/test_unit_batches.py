"""Weights that are a batch of one matrix."""

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

from tvm_fusion.frontend.normalize import UnitBatches

op = relax.op
# Shapes of both operands, and of the weight that the product reads.
CASES = {
    "einsum": ((1, 6, 4), (1, 4, 5), (4, 5)),
    "several": ((2, 3, 6, 4), (1, 1, 4, 5), (4, 5)),
    "a batch": ((2, 6, 4), (2, 4, 5), (2, 4, 5)),
    "more dimensions than the activation": ((6, 4), (1, 4, 5), (1, 4, 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_batch_of_one_matrix_is_the_matrix(case):
    left, right, expected = CASES[case]
    x = relax.Var("x", relax.TensorType(left, "float32"))
    weight = relax.const(np.zeros(right, "float32"))
    mod = main_module([x], lambda emit, x: op.matmul(x, weight))
    (block,) = UnitBatches()(mod)["main"].body.blocks
    (product,) = (
        b for b in block.bindings if getattr(b.value, "op", None) == op.matmul(x, weight).op
    )
    assert tuple(map(int, product.value.args[1].ty.shape)) == expected
    assert product.var.ty.shape == mod["main"].ret_ty.shape
