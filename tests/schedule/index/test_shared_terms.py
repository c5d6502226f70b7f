"""Scalar expressions: what occurs twice gets a name, whatever kind of node it is."""

import random

import pytest
import tvm_ffi
from tvm import ir, te, tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion._tvm.ir.structural import structural_walk
from tvm_fusion.core.tir.expressions import load, substitute
from tvm_fusion.schedule.index.estimate import _Numbers, shared_subexpressions

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
    expensive = tirx.exp(tirx.Cast("float32", X))
    one = tirx.Cast("float32", Y)
    value = te.if_then_else(X > 0, expensive + expensive, one)
    bindings, _ = shared_subexpressions([value])
    assert not bindings


def drawn(depth: int, buffers: list) -> ir.Expr:
    """Draw an expression from few leaves, so that equal parts are frequent but not one object."""
    if not depth or random.random() < 0.1:
        at = random.choice([X, Y, tirx.IntImm("int32", random.randrange(2))])
        return load(random.choice(buffers), [at, random.choice([X, X + 1])])
    a, b = (drawn(depth - 1, buffers) for _ in "ab")
    make = random.choice(
        [
            tirx.Add,
            tirx.Mul,
            tirx.Max,
            lambda a, b: tirx.Select(a < b, a, b),
            lambda a, b: te.if_then_else(a < b, tirx.exp(a), b),
            lambda a, _: tirx.Cast("float32", tirx.Cast("float16", a)),
            lambda a, _: tirx.const(random.choice([1.0, 1.5]), "float32") * a,
        ]
    )
    return make(a, b)


def test_numbers_are_equal_where_expressions_are():
    buffers = [declare([5, 7], "float32", name) for name in "ab"]
    equal = 0
    for _ in range(20):
        expr = drawn(4, buffers)
        nodes: list[ir.Expr] = []
        structural_walk(expr, (ir.Expr, nodes.append))
        nodes = [n for n in nodes if isinstance(n.ty, ir.PrimType)]
        numbers, keys = _Numbers(), {}
        for node in nodes:
            number = keys.setdefault(tvm_ffi.StructuralKey(node), numbers.of(node))
            assert numbers.of(node) == number
        equal += len(nodes) - len(keys)
        assert len(set(keys.values())) == len(keys)
    assert equal > 20


def test_types_and_buffers_tell_terms_apart():
    a, b = (declare([5], "float32", name) for name in "ab")
    numbers = _Numbers()
    terms = [load(a, [X]), load(b, [X]), tirx.IntImm("int32", 1), tirx.IntImm("int64", 1)]
    assert len({numbers.of(term) for term in terms}) == 4
    assert numbers.of(load(a, [X])) == numbers.of(terms[0])
