"""Scalar expressions: what occurs twice gets a name, whatever kind of node it is."""

import pytest
import tvm_ffi
from tvm import te, tirx

from tvm_fusion.core.expressions import shared_subexpressions, substitute

X, Y = (tirx.Var(name, "int32") for name in "xy")
KINDS = {
    "sum": X + Y,
    "comparison": X < Y,
    "not": tirx.Not(X < Y),
    "bitwise not": ~X,
    "cast": tirx.Cast("float32", X),
    "selection": tirx.Select(X < Y, X, Y),
    "call": tirx.exp(tirx.Cast("float32", X)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_occurs_twice_is_named_once(kind):
    value = KINDS[kind]
    bindings, (first, second) = shared_subexpressions([value, value])
    assert first.same_as(second)
    rebuilt = first
    for var, bound in reversed(bindings):
        rebuilt = substitute(rebuilt, {var: bound})
    assert tvm_ffi.structural_equal(rebuilt, value)


def test_what_a_condition_guards_stays_under_it():
    dear = tirx.exp(tirx.Cast("float32", X))
    one = tirx.Cast("float32", Y)
    value = te.if_then_else(X > 0, dear + dear, one)
    bindings, _ = shared_subexpressions([value])
    assert not bindings
