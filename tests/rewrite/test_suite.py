"""Expressions with a known optimum: the search finds all of them, the published one does not."""

import numpy as np
import pytest
import tvm

from tests.rewrite.suite import EXPRESSIONS, whole
from tests.rewrite.term_numerics import exactly, run, wide, worst_error
from tvm_fusion.device import parse
from tvm_fusion.rewrite.egraph.emit import function_of
from tvm_fusion.rewrite.egraph.extract import extract
from tvm_fusion.rewrite.egraph.graph import EGraph
from tvm_fusion.rewrite.egraph.law import FLAGS
from tvm_fusion.rewrite.egraph.regions import regions
from tvm_fusion.rewrite.egraph.saturate import Limits
from tvm_fusion.rewrite.laws import allowed
from tvm_fusion.rewrite.search.dnnfusion_search import PUBLISHED, flops, greedy
from tvm_fusion.rewrite.search.search import Searcher

MISSED = 20  # at least so many are not found by the published search
LIMITS = Limits(seconds=600)  # of a busy machine: the other limits end the search
LAWS = allowed(tuple(FLAGS))


@pytest.fixture(scope="module")
def searcher():
    return Searcher(LAWS, parse("cpu:x86-64-v3").tvm_target(), LIMITS)


@pytest.fixture(scope="module")
def costs(searcher):
    """The planner's costs of optima, by name."""
    found = {}

    def cost(name):
        if name not in found:
            region = whole(EXPRESSIONS[name].optimum)
            graph = EGraph(searcher.heads)  # what occurs twice is computed once, constants at once
            roots = graph.add_terms(region.terms(searcher.heads))
            found[name] = planned(searcher, extract(graph, roots, 1)[0].terms, region)
        return found[name]

    return cost


def planned(searcher, terms, region):
    func, constants = function_of(terms, region, searcher.heads)
    return searcher._estimator.estimate(func, constants)


def region_of(expression):
    (block,) = expression.before["main"].body.blocks
    (region,) = regions(block)
    return region


def values(expression, region, heads):
    """Arrays of the leaves that are no small constants."""
    inputs = dict(zip(expression.leaves, expression.arrays, strict=True))
    found = {}
    for head, leaf in zip(region.heads(heads), region.leaves, strict=True):
        is_constant = isinstance(leaf, tvm.ir.GenericConst)
        found[head] = leaf.value.numpy() if is_constant else inputs[leaf.name]
    return found


def test_there_are_sixty():
    assert len(EXPRESSIONS) == 60


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.slow
def test_found(name, searcher, costs):
    expression = EXPRESSIONS[name]
    region = region_of(expression)
    found = searcher.search(region)
    assert planned(searcher, found.after, region) <= costs(name)
    given = values(expression, region, searcher.heads)
    error, compared = worst_error(found.before, found.after, searcher.heads, given)
    assert error <= 1
    assert compared


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_optimum_is_equal(name, searcher):
    """Both sides as they are written, on the same arrays: the optimum is no other expression."""
    expression = EXPRESSIONS[name]
    results = []
    for mod in (expression.before, expression.optimum):
        region = whole(mod)
        terms = region.terms(searcher.heads)
        given = values(expression, region, searcher.heads)
        done = run(terms, searcher.heads, {h: wide(a) for h, a in given.items()}, exactly)
        results.append([done[term] for term in terms])
    for old, new in zip(*results, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-6 * np.abs(old).max())


@pytest.mark.slow
def test_the_published_search_misses_some(searcher, costs):
    missed = []
    for name, expression in EXPRESSIONS.items():
        region = region_of(expression)
        terms = region.terms(searcher.heads)
        after, _ = greedy(terms, searcher.heads, (*PUBLISHED, *LAWS), flops)
        if not planned(searcher, after, region) <= costs(name):
            missed.append(name)
    assert len(missed) >= MISSED, missed
    assert {"two_summands", "roots", "absolute_values"}.isdisjoint(missed)  # its own rules
