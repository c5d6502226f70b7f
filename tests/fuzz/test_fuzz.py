"""Random graphs: what the generator promises, and that all of them come out right."""

import os

import numpy as np
import pytest

from .check import SWALLOWED, difference
from .dims import Dim, fit
from .generate import DRAWS, FEWEST, MOST, WIDE_FROM, drawn, generate
from .graph import Node
from .operators import OPERATORS
from .reference import Value, evaluate, evaluate_node, leaf_value
from .session import describe, run

pytestmark = pytest.mark.slow_beyond(2)

CI_GRAPHS, PARTS = 100 if os.environ.get("TESTS_CASES") == "all" else 28, 2
FEW = (1, 5, 6, 7, 12)  # symbolic, half, both, neither


def failures(seeds):
    report = run(seeds)  # in one process: tests run side by side
    assert report.graphs == len(seeds)
    return "\n".join(describe(failure) for failure in report.failures)


@pytest.mark.slow
def test_a_few_graphs():
    assert not failures(FEW)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_graphs(part):
    first = part * CI_GRAPHS // PARTS
    assert not failures(range(first, first + CI_GRAPHS // PARTS))


@pytest.mark.slow
def test_what_the_generator_promises():
    graphs = [generate(seed) for seed in range(50)]
    assert all(FEWEST <= len(graph.nodes) <= MOST for graph in graphs)
    assert len({name for graph in graphs for name in graph.operators}) >= 60
    assert sum(graph.is_symbolic for graph in graphs) == 10
    assert sum(graph.has_half for graph in graphs) >= 10
    consumers = [count for graph in graphs for count in graph.consumers().values()]
    assert np.mean([count > 1 for count in consumers]) > 0.2
    assert np.mean([len(graph.outputs) > 1 for graph in graphs]) > 0.5


@pytest.mark.slow
def test_what_wide_graphs_draw():
    seeds = range(WIDE_FROM, WIDE_FROM + 15)
    assert not any(drawn(seed) for seed in range(50))
    assert {draw for seed in seeds for draw in drawn(seed)} == set(DRAWS)
    for seed in seeds:
        graph, draws = generate(seed), drawn(seed)
        assert FEWEST <= len(graph.nodes) <= MOST
        assert graph.has_dtype("bfloat16") or "bfloat16" not in draws
        assert graph.has_dtype("int64", "bool") or "integers" not in draws
        assert graph.is_empty_somewhere or "empty" not in draws
        assert graph.has_special == ("special" in draws)
    graphs = [generate(seed) for seed in seeds if "integers" in drawn(seed)]
    largest = [leaf for g in graphs for leaf in g.leaves if leaf.dtype == "int64"]
    assert max(np.abs(leaf.data[0]).max(initial=0) for leaf in largest) > 2**32


@pytest.mark.slow
def test_compilers_below_us():
    """LLVM searched for ever (``lower.float_math``); an extent of 0 (``lower.cleanup``)."""
    assert not failures([1300261, 1100431, 1301061])


def test_a_seed_gives_one_graph():
    one, two = generate(7), generate(7)
    assert str(one) == str(two)
    for a, b in zip(one.leaves, two.leaves, strict=True):
        np.testing.assert_array_equal(a.data[0], b.data[0])


@pytest.mark.slow
def test_every_operator_can_be_generated():
    left = set(OPERATORS)
    for seed in range(600):
        if left:
            left -= set(generate(seed).operators)
    assert left == set()


def test_tolerances_follow_dtype_and_stay_small():
    for seed in range(15):
        graph = generate(seed)
        values = evaluate(graph, 0)
        for value in graph.outputs:
            dtype = graph.types[value][1]
            scale = np.abs(values[value].exact.astype("float64")).max()
            share = {"float16": 0.2, "float32": 5e-3}.get(dtype, 0.0)
            assert values[value].tolerance(dtype).max() <= share * max(scale, 1e-3)


def test_a_wrong_element_a_nan_and_a_wrong_dtype_are_seen():
    exact = np.linspace(1, 2, 12).reshape(3, 4)
    value = Value(exact, (exact * (1 + 1e-7),) * 4)
    right = exact.astype("float32")
    assert difference(right, value, "float32") is None
    for wrong in (1.0001 * right[1, 2], np.nan):
        changed = right.copy()
        changed[1, 2] = wrong
        assert "1 of 12 elements, at [1, 2]" in str(difference(changed, value, "float32"))
    assert "instead of float32" in str(difference(exact, value, "float32"))


def test_numbers_in_the_place_of_nan_are_seen_and_infinities_may_be_nan():
    exact = np.array([1.0, np.nan, np.inf, -np.inf, 2.0])
    value = Value(exact, (exact * (1 + 1e-7),) * 4)
    right = exact.astype("float32")
    assert difference(right, value, "float32") is None
    assert difference(np.array([1, np.inf, np.nan, np.nan, 2], "float32"), value, "float32") is None
    for place in (1, 2, 3):
        changed = right.copy()
        changed[place] = 7
        assert str(difference(changed, value, "float32")).startswith(f"{SWALLOWED}1 of 5 elements")
    for wrong in (np.nan, np.inf, 1.001):  # where the exact result is a number
        changed = right.copy()
        changed[0] = wrong
        sentence = str(difference(changed, value, "float32"))
        assert sentence.startswith("1 of 5 elements, at [0]")


def test_perturbed_evaluations_leave_nan_and_infinities_alone():
    x = np.array([1.0, np.nan, np.inf, -np.inf], "float32")
    node = Node("exp", (0,), (1,))
    (value,) = evaluate_node(node, [leaf_value(x)], ["float32"], {})
    assert np.isnan(value.exact[1])
    assert list(value.exact[2:]) == [np.inf, 0]
    assert list(value.spread[1:] < 1e-30) == [True] * 3
    assert 0 < value.spread[0] < 1e-5
    assert np.isfinite(value.tolerance("float32")).all()


def test_a_logarithm_near_zero_has_the_error_of_its_argument():
    x = np.array([[8.5, -2.125, -2.75]], "float32")
    node = Node("nn.log_softmax", (0,), (1,), {"axis": 1})
    (value,) = evaluate_node(node, [leaf_value(x)], ["float32"], {})
    largest = Value(value.exact[:, 0], tuple(p[:, 0] for p in value.perturbed))
    shifted = x - x.max()
    right = (shifted - np.log(np.exp(shifted).sum(dtype="float32")))[:, 0]
    assert abs(right - largest.exact) > 1e-4 * abs(largest.exact)
    assert difference(right, largest, "float32") is None
    assert difference(right - np.float32(1e-5), largest, "float32") is not None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((4, 4, 4), 4),
        ((3, 5, 9), Dim(1, ("n",))),
        ((8, 12, 20), Dim(2, ("n",), 2)),
        ((6, 35, 9), Dim(1, ("m", "n"))),
        ((1, 2, 4), None),
    ],
)
def test_fitted_dimensions(values, expected):
    envs = ({"m": 2, "n": 3}, {"m": 7, "n": 5}, {"m": 1, "n": 9})
    assert fit(values, envs) == expected
