"""Bounds of classes: what is known of signs and sizes, and what a law may not teach."""

import math

import numpy as np
import pytest
from tvm import relax

from tvm_fusion.rewrite.egraph.analysis import ANY, Bounds, bounds_of_value
from tvm_fusion.rewrite.egraph.graph import EGraph
from tvm_fusion.rewrite.egraph.head import Heads
from tvm_fusion.rewrite.egraph.saturate import Limits, saturate
from tvm_fusion.rewrite.egraph.terms import Term
from tvm_fusion.rewrite.laws import allowed

op = relax.op


def graph_of(dtype="float32"):
    heads = Heads()
    graph = EGraph(heads)
    leaf = Term(heads.leaf("input", 0), (), relax.TensorType((3, 5), dtype))
    return graph, graph.add_terms([leaf])[0]


def build(graph, x, *functions):
    for function in functions:
        x = graph.call(function, x)
        assert x is not None
    return x


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ((op.exp,), Bounds(0.0, math.inf)),
        ((op.sigmoid, op.negative), Bounds(-1.0, 0.0)),
        ((op.tanh, op.nn.relu), Bounds(0.0, 1.0)),
        ((lambda x: op.clip(x, -2, 6), op.abs), Bounds(0.0, math.inf)),
        ((lambda x: op.clip(x, -2, 6), lambda x: op.reshape(x, (15,))), Bounds(-2.0, 6.0)),
        ((op.tanh, op.exp, op.sqrt), Bounds(math.exp(-0.5), math.exp(0.5))),
        ((op.log,), ANY),
        ((op.tan,), ANY),
    ],
)
def test_bounds_of_operators(functions, expected):
    graph, x = graph_of()
    found = graph[build(graph, x, *functions)].bounds
    assert found == pytest.approx(expected)


def test_integers_wrap_around():
    graph, x = graph_of()
    assert graph[graph.call(op.multiply, x, x)].bounds.low == 0
    graph, x = graph_of("int32")
    assert graph[graph.call(op.multiply, x, x)].bounds == ANY
    assert graph[build(graph, x, op.abs)].bounds == ANY
    assert graph[build(graph, x, op.nn.relu, op.mean)].bounds == ANY
    graph, x = graph_of("uint8")
    assert graph[graph.call(op.subtract, x, x)].bounds.low == 0


def test_bounds_of_constants():
    assert bounds_of_value(np.asarray([3.0, -1.0, 2.0])) == Bounds(-1.0, 3.0)
    assert bounds_of_value(np.asarray([3.0, np.nan])) == ANY
    assert bounds_of_value(np.zeros((0, 3))) == ANY
    assert bounds_of_value(np.asarray([2**60, 2**60 + 1])) == ANY  # one number in float64


def test_a_tensor_of_one_number_is_known_whatever_its_shape():
    graph, x = graph_of()
    zeros = build(graph, x, op.zeros_like)
    assert graph.uniform(zeros) == 0.0
    assert graph.uniform(x) is None


def test_a_law_does_not_teach_more_than_its_right_side_knows():
    """exp(log(x)) = x, and is never negative; relu(x) = x is wrong for all that."""
    graph, x = graph_of()
    rebuilt = build(graph, x, op.log, op.exp)
    positive = build(graph, x, op.nn.relu)
    saturate(graph, allowed(), Limits(), {})
    assert graph.find(rebuilt) == graph.find(x)
    assert graph.find(positive) != graph.find(x)


def test_what_becomes_a_constant_late_is_folded():
    """(x - x) + 2 is a constant, though it was none when its sum was written."""
    graph, x = graph_of()
    nothing = graph.call(op.subtract, x, x)
    assert nothing is not None
    two = graph.constant(2.0, "float32")
    total = graph.call(op.add, nothing, two)
    assert total is not None
    assert not graph[total].is_constant
    saturate(graph, allowed(), Limits(), {})
    assert graph[total].is_constant
    np.testing.assert_array_equal(graph[total].value, np.full((3, 5), 2.0))
