"""Expressions with a known optimum: the search finds all, the published one a part of them."""

import numpy as np
import pytest
import tvm
from suite import EXPRESSIONS, whole
from term_numerics import worst_error

from tvm_fusion.device import parse
from tvm_fusion.rewrite.greedy import PUBLISHED, greedy
from tvm_fusion.rewrite.law import FLAGS
from tvm_fusion.rewrite.laws import LAWS, allowed
from tvm_fusion.rewrite.regions import regions
from tvm_fusion.rewrite.search import Searcher
from tvm_fusion.rewrite.terms import subterms
from tvm_fusion.rewrite.weights import elements

MISSED = 20  # at least so many are not found by the published search


@pytest.fixture(scope="module")
def searcher():
    return Searcher(allowed(tuple(FLAGS)), parse("cpu:x86-64-v3").tvm_target())


def region_of(expression):
    (block,) = expression.before["main"].body.blocks
    (region,) = regions(block)
    return region


def given(region, expression, heads):
    """Arrays of the leaves that are no small constants."""
    params = list(expression.before["main"].params)
    inputs = [
        a
        for a, leaf in zip(expression.arrays, expression.leaves.values(), strict=True)
        if not leaf.is_weight
    ]
    found = {}
    for head, leaf in zip(region.heads(heads), region.leaves, strict=True):
        if isinstance(leaf, tvm.ir.GenericConst):
            found[head] = leaf.value.numpy()
        else:
            found[head] = inputs[[hash(p) for p in params].index(hash(leaf))]
    return found


def cost(terms, region, searcher):
    return searcher._estimate(terms, region)


def test_there_are_sixty():
    assert len(EXPRESSIONS) == 60


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_found(name, searcher):
    expression = EXPRESSIONS[name]
    region = region_of(expression)
    found = searcher.search(region)
    optimum = whole(expression.optimum)
    assert found.cost_after <= cost(optimum.terms(searcher.heads), optimum, searcher)
    assert found.limit is None
    arrays = given(region, expression, searcher.heads)
    error, compared = worst_error(found.before, found.after, searcher.heads, arrays)
    assert error <= 1
    assert compared
