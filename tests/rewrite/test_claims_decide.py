"""The templates' claims decide between equal forms: what a form costs depends on who makes it."""

from tvm import relax
from tvm.relax import op

from tests.rewrite.suite.expression import module, whole
from tvm_fusion.core.contract import templates
from tvm_fusion.device import parse
from tvm_fusion.rewrite.egraph.emit import function_of
from tvm_fusion.rewrite.egraph.law import FLAGS
from tvm_fusion.rewrite.egraph.saturate import Limits
from tvm_fusion.rewrite.egraph.terms import subterms
from tvm_fusion.rewrite.laws import allowed
from tvm_fusion.rewrite.search.dnnfusion_search import flops
from tvm_fusion.rewrite.search.search import Searcher

TARGET = parse("cpu:x86-64-v3").tvm_target()
ALL = templates.templates(TARGET)


def variable(name, *shape):
    return relax.Var(name, relax.TensorType(shape, "float32"))


def scale_around_a_product():
    """(x * s) @ w = (x @ w) * s: an epilogue of the product, or fewer operations before it."""
    x, s, w = variable("x", 96, 64), variable("s", 96, 1), variable("w", 64, 80)
    return [x, s, w], op.matmul(x * s, w)


def search(case, without, monkeypatch):
    """Find the form of a case when one template is off; returns the search, too."""
    kept = tuple(t for t in ALL if t.name != without)
    monkeypatch.setitem(templates._built_in, "cpu", kept)
    params, expr = case()
    region = whole(module(params, [expr]))
    searcher = Searcher(allowed(tuple(FLAGS)), TARGET, Limits(seconds=600))
    return searcher.search(region), searcher, region


def operators(terms):
    return [t.head.name.removeprefix("relax.") for t in subterms(terms) if t.head.call is not None]


def test_a_template_less_changes_the_form(monkeypatch):
    for without, ending in (("", ["matmul", "multiply"]), ("contraction", ["multiply", "matmul"])):
        found, _, _ = search(scale_around_a_product, without, monkeypatch)
        assert operators(found.after)[-2:] == ending, without or "all"


def test_each_form_costs_less_where_it_is_chosen(monkeypatch):
    """Not a tie that is broken otherwise: either form is costlier where the other one is chosen."""
    functions, estimators = [], []
    for without in ("", "contraction"):
        found, searcher, region = search(scale_around_a_product, without, monkeypatch)
        functions.append(function_of(found.after, region, searcher.heads))
        estimators.append(searcher._estimator)
    with_it, without_it = ([e.estimate(*f).us for f in functions] for e in estimators)
    assert with_it[0] < with_it[1]
    assert without_it[1] < without_it[0]


def test_operations_alone_would_choose_otherwise(monkeypatch):
    found, _, _ = search(scale_around_a_product, "", monkeypatch)
    assert found.after is not found.before
    assert flops(found.after) > flops(found.before)
