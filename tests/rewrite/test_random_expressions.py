"""Property-based: random expressions keep their values under all laws."""

import os

import pytest
from hypothesis import given, settings

from tests.rewrite.graph_numerics import unequal_nodes
from tests.rewrite.random_expressions import samples
from tests.rewrite.term_numerics import worst_error
from tvm_fusion.rewrite.egraph.extract import extract
from tvm_fusion.rewrite.egraph.graph import EGraph
from tvm_fusion.rewrite.egraph.head import Heads
from tvm_fusion.rewrite.egraph.saturate import Limits, saturate
from tvm_fusion.rewrite.laws import allowed

EXAMPLES = int(os.environ.get("TVM_FUSION_EXAMPLES", "200"))
LIMITS = Limits(nodes=250, rounds=4, matches=60)
FORMS = 4

examples = settings(max_examples=EXAMPLES, derandomize=EXAMPLES == 200)


@examples
@given(samples())
@pytest.mark.slow
def test_forms_have_the_values_of_the_original(sample):
    heads = Heads()
    before = sample.region.terms(heads)
    graph = EGraph(heads)
    roots = graph.add_terms(before)
    saturate(graph, allowed(), LIMITS, {})
    arrays = sample.given(heads)
    for form in extract(graph, roots, FORMS):
        error, _ = worst_error(before, form.terms, heads, arrays, sample.seed)
        assert error <= 1, f"{' ; '.join(map(str, before))} = {' ; '.join(map(str, form.terms))}"


@pytest.mark.parametrize("flags", [(), ("reassociate",)])
@settings(examples, max_examples=EXAMPLES // 2)
@given(sample=samples())
@pytest.mark.slow
def test_nodes_of_a_class_are_equal(flags, sample):
    heads = Heads()
    before = sample.region.terms(heads)
    graph = EGraph(heads)
    graph.add_terms(before)
    saturate(graph, allowed(flags), LIMITS, {})
    wrong = unequal_nodes(graph, before, sample.given(heads), sample.seed)
    assert not wrong, f"{' ; '.join(map(str, before))}: {wrong}"
