"""Constants that a type cannot hold are no part of a graph that laws write."""

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tvm_fusion.rewrite.egraph.graph import EGraph
from tvm_fusion.rewrite.egraph.head import Heads

CASES = {
    "overflow": (op.multiply, 60000.0, 2.0),
    "underflow": (op.multiply, 2.0**-13, 2.0**-13),
    "quotient": (op.divide, 2.0**-13, 2.0**12),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_type_cannot_hold_is_not_written(case):
    make, *numbers = CASES[case]
    for dtype, is_held in (("float16", False), ("float32", True)):
        graph = EGraph(Heads())
        operands = [graph.constant(number, dtype) for number in numbers]
        found = graph.call(make, *operands, law="law")
        assert (found is not None) is is_held


def test_what_a_model_says_stays():
    graph = EGraph(Heads())
    x = relax.Var("x", relax.TensorType((4,), "float16"))
    head = graph.heads.of(op.multiply(x, x))
    small = graph.constant(2.0**-13, "float16")
    number = graph.add(head, [small, small])
    assert graph[number].value == np.float16(2.0**-26) == 0


@pytest.mark.parametrize("operands", [(0.0, 3.0), (np.inf, 2.0)])
def test_zeros_and_infinities_of_operands_are_kept(operands):
    graph = EGraph(Heads())
    numbers = [graph.constant(number, "float16") for number in operands]
    assert graph.call(op.multiply, *numbers, law="law") is not None
