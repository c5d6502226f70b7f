"""Limits of a search, and that it finds the same again: here, elsewhere, for other dimensions."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from tests.rewrite.suite import EXPRESSIONS
from tests.rewrite.suite.expression import module, whole
from tests.rewrite.term_numerics import worst_error
from tvm_fusion.device import parse
from tvm_fusion.rewrite.egraph.extract import NodeCosts
from tvm_fusion.rewrite.egraph.graph import EGraph
from tvm_fusion.rewrite.egraph.head import Heads
from tvm_fusion.rewrite.egraph.law import FLAGS
from tvm_fusion.rewrite.egraph.saturate import Limits, saturate
from tvm_fusion.rewrite.egraph.terms import subterms
from tvm_fusion.rewrite.laws import allowed
from tvm_fusion.rewrite.search.search import SearchEquivalents, Searcher

TARGET = parse("cpu:x86-64-v3").tvm_target()
LAWS = allowed(tuple(FLAGS))
FREE = Limits(nodes=10**6, rounds=30, matches=10**6, seconds=600)


@pytest.mark.parametrize(
    ("limit", "limits"),
    [
        ("nodes", replace(FREE, nodes=25)),
        ("rounds", replace(FREE, rounds=1)),
        ("seconds", replace(FREE, seconds=0.0)),
    ],
)
def test_a_limit_ends_the_search_with_the_best_form_so_far(limit, limits):
    expression = EXPRESSIONS["two_factors_in_turn"]
    region = whole(expression.before)
    searcher = Searcher(LAWS, TARGET, limits)
    found = searcher.search(region)
    assert found.limit == limit
    given = dict(zip(region.heads(searcher.heads), expression.arrays, strict=True))
    error, compared = worst_error(found.before, found.after, searcher.heads, given)
    assert error <= 1
    assert compared
    if found.after is not found.before:
        assert found.cost_after < found.cost_before


def test_more_rounds_find_more():
    region = whole(EXPRESSIONS["two_factors_in_turn"].before)
    costs = []
    for rounds in (1, 2, 4, 8):
        found = Searcher(LAWS, TARGET, replace(FREE, rounds=rounds, nodes=2000)).search(region)
        costs.append(found.cost_after or found.cost_before)
    known = [c for c in costs if c is not None]
    assert known == sorted(known, reverse=True)
    assert known[-1] < known[0] or len(known) < len(costs)


def test_nodes_are_not_exceeded_by_more_than_one_law_writes():
    heads = Heads()
    graph = EGraph(heads)
    graph.add_terms(whole(EXPRESSIONS["horner"].before).terms(heads))
    assert saturate(graph, LAWS, replace(FREE, nodes=40), {}) == "nodes"
    assert 40 <= graph.size < 50


def test_nothing_is_new_without_a_limit():
    heads = Heads()
    graph = EGraph(heads)
    graph.add_terms(whole(EXPRESSIONS["two_summands"].before).terms(heads))
    assert saturate(graph, LAWS, FREE, {}) is None
    size = graph.size
    assert saturate(graph, LAWS, FREE, {}) is None
    assert graph.size == size


_PRINT = """
import sys
sys.path.insert(0, sys.argv[1])
import tvm_fusion.transform  # the templates, as conftest has them
from test_limits import rewritten
for name in sys.argv[2:]:
    print(rewritten(name).script())
"""
NAMES = ("common_part_of_two_sums", "normalised_rows", "affine_numbers")


def rewritten(name):
    with TARGET:
        return SearchEquivalents(LAWS, Limits(seconds=600))(EXPRESSIONS[name].before)


@pytest.mark.slow
def test_two_runs_write_the_same():
    for name in NAMES:
        tvm.ir.assert_structural_equal(rewritten(name), rewritten(name))


@pytest.mark.slow
def test_another_process_with_other_hashes_writes_the_same():
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parents[2]), os.environ.get("PYTHONPATH", "")])
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "77" else "77"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", _PRINT, str(here), *NAMES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{rewritten(name).script()}\n" for name in NAMES)
    assert "R.function" in done.stdout


def symbolic():
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 64), "float32"))
    s = relax.Var("s", relax.TensorType((n, 1), "float32"))
    y = relax.Var("y", relax.TensorType((n, 64), "float32"))
    w = relax.Var("w", relax.TensorType((64, 16), "float32"))
    before = op.matmul(x * s, w) + (op.matmul(y * s, w))
    return module([x, y, s, w], [before])


def test_symbolic_dims_are_searched():
    """((x + y) @ w) * s: of two products and two scales of n x 64 elements one each is left."""
    mod = symbolic()
    region = whole(mod)
    searcher = Searcher(LAWS, TARGET, Limits(seconds=600))
    found = searcher.search(region)
    names = [t.head.name for t in _operators(found.after)]
    assert names.count("relax.matmul") == 1
    assert names.count("relax.multiply") == 1
    with TARGET:
        after = SearchEquivalents(LAWS, Limits(seconds=600))(mod)
    assert after["main"].ty == mod["main"].ty
    # For more rows than the estimate assumes, and for one.
    for rows in (1, 5):
        rng = np.random.default_rng(rows)
        shapes = {"x": (rows, 64), "y": (rows, 64), "s": (rows, 1), "w": (64, 16)}
        given = {
            head: rng.normal(size=shapes[leaf.name]).astype("float32")
            for head, leaf in zip(region.heads(searcher.heads), region.leaves, strict=True)
        }
        error, compared = worst_error(found.before, found.after, searcher.heads, given)
        assert error <= 1
        assert compared == rows * 16


def _operators(terms):
    return [t for t in subterms(terms) if t.head.call is not None]


def test_equal_regions_are_searched_once(monkeypatch):
    searched = []
    plain = Searcher._search

    def counted(self, region, before, told):
        searched.append(before)
        return plain(self, region, before, told)

    monkeypatch.setattr(Searcher, "_search", counted)
    searcher = Searcher(LAWS, TARGET)
    first = searcher.search(whole(EXPRESSIONS["two_summands"].before))
    again = searcher.search(whole(EXPRESSIONS["two_summands"]._module(0)))
    assert again is first
    assert len(searched) == 1
    searcher.search(whole(EXPRESSIONS["three_summands"].before))
    assert len(searched) == 2


def test_uses_are_counted():
    """a * c + b * c with two laws: what is tried, refused, chosen and gained."""
    laws = tuple(law for law in LAWS if law.name in ("factor_multiply", "neutral_multiply"))
    assert len(laws) == 2
    searcher = Searcher(laws, TARGET)
    found = searcher.search(whole(EXPRESSIONS["two_summands"].before))
    assert found.laws == ("factor_multiply",)
    use = searcher.uses["factor_multiply"]
    # Forwards it fires once. Backwards it finds the form again, and writes nothing new.
    assert use.fired == 1
    assert use.tried >= use.fired
    assert use.chosen == 1
    assert use.gain_us == pytest.approx(found.cost_before.us - found.cost_after.us)
    assert "neutral_multiply" not in searcher.uses  # there is no number in it
    # Found a second time, it is chosen a second time, and not tried again.
    tried = use.tried
    searcher.search(whole(EXPRESSIONS["two_summands"].before))
    assert (use.tried, use.chosen) == (tried, 2)


def test_refusals_are_counted_with_their_reasons():
    laws = tuple(law for law in LAWS if law.name == "split_root")
    x, y = (relax.Var(n, relax.TensorType((3, 5), "float32")) for n in "xy")
    searcher = Searcher(laws, TARGET)
    found = searcher.search(whole(module([x, y], [op.sqrt(x * y) + x])))
    assert found.after is found.before
    use = searcher.uses["split_root"]
    assert (use.fired, use.chosen, use.gain_us) == (0, 0, 0.0)
    assert use.tried == sum(use.refused.values()) > 0
    assert all("may be negative" in sentence for sentence in use.refused)


def test_windows_wider_than_the_assumed_dimension_weigh_more_than_nothing():
    """Negative weights in a cycle of the graph would let costs fall without end."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((1, (n - 512) // 160 + 1, 64), "float32"))
    w = relax.Var("w", relax.TensorType((64, 16), "float32"))
    heads = Heads()
    graph = EGraph(heads)
    roots = graph.add_terms(whole(module([x, w], [op.matmul(x * x + x, w)])).terms(heads))
    saturate(graph, LAWS, replace(FREE, nodes=100), {})
    costs = NodeCosts(graph, [graph.find(root) for root in roots])
    assert (costs.weights >= 0).all()
