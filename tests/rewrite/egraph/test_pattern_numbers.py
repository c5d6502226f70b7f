"""Numbers in patterns stand on either side of an operator."""

import operator

import pytest

from tvm_fusion.rewrite.egraph.pattern import Number, Tensor, apply

X = Tensor("x")
OPERATORS = {
    "relax.add": operator.add,
    "relax.subtract": operator.sub,
    "relax.multiply": operator.mul,
    "relax.divide": operator.truediv,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_on_either_side(name):
    assert OPERATORS[name](X, 2.0) == apply(name, X, Number(2.0))
    assert OPERATORS[name](2.0, X) == apply(name, Number(2.0), X)
    assert OPERATORS[name](2.0, X) != OPERATORS[name](X, 2.0)
