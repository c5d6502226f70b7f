"""The graphs of the literature: the page is of the record, and search never loses."""

import numpy as np
import pytest

from benchmarks.literature import counting, unseen
from benchmarks.literature.__main__ import PAGE, planned, stored
from benchmarks.literature.expressions import EXPRESSIONS
from benchmarks.literature.measure import measured, sides
from benchmarks.literature.network import Network
from benchmarks.literature.table import launches, reached, render, slower
from benchmarks.literature.table5 import MODELS
from benchmarks.literature.taso import GRAPHS, PUBLISHED
from benchmarks.records import rounded
from tvm_fusion.deploy.build.launch_names import launches_of
from tvm_fusion.device import parse
from tvm_fusion.pipeline import relax_pipeline

BEST = {  # expressions that take no more kernels than the best known plan, at least
    ("cpu:x86-64-v3", "search"): 144,
    ("cpu:x86-64-v3", "reassociate"): 157,
    ("cuda:sm_90a", "search"): 145,
    ("cuda:sm_90a", "reassociate"): 154,
}
CHEAP = ("gelu", "softmax", "two_sums", "gated_dense", "scaled_product")


def test_the_page_is_of_the_record():
    assert PAGE.read_text() == render(stored())


def test_search_is_never_slower_by_its_own_estimate():
    assert slower(stored()) == []


def test_all_names_are_known():
    assert set(PUBLISHED) == set(GRAPHS)
    record = stored()
    assert set(record["taso"]) <= set(GRAPHS)
    assert set(record.get("table5", ())) <= set(MODELS)
    assert set(record["unseen"]) <= set(unseen.names())
    assert set(record["expressions"]) == set(EXPRESSIONS)


@pytest.mark.parametrize("column", BEST, ids=" ".join)
def test_so_many_expressions_reach_the_best_known_plan(column):
    assert len(reached(stored(), *column)) >= BEST[column]


@pytest.mark.parametrize("name", CHEAP)
def test_the_record_is_of_this_code(name):
    found = planned("expressions", name)
    kept = stored()["expressions"][name]
    for target in counting.TARGETS:
        kernels, before = (
            {way: one["kernels"] for way, one in of[target].items()} for of in (found, kept)
        )
        assert kernels == before


def inception(net, x):
    """Write a block of Inception-v3, narrower, whose image is a parameter."""
    wide = net.conv(net.conv(x, 16, 1), 32, 5)
    deep = net.conv(net.conv(net.conv(x, 16, 1), 32, 3), 32, 3)
    pooled = net.conv(net.pool(x, 3, 1, 1, average=True), 32, 1)
    return net.concat([net.conv(x, 32, 1), wide, deep, pooled])


@pytest.mark.slow
@pytest.mark.parametrize(("target", "copies"), [("cpu:x86-64-v3", 1), ("cuda:sm_90a", 0)])
def test_all_launches_are_counted(target, copies):
    """The plan's kernels, and on CPUs one that brings the image to another layout."""
    mod = Network(counting.DTYPES[counting.TARGETS[target]]).build(inception, (1, 64, 14, 14))
    found = counting.figures(mod, target, "search")
    with parse(target).tvm_target():
        made = relax_pipeline()(mod)
    assert found["copies"] == copies
    assert len(launches_of(made, "main")) == launches(found)


def test_tables_of_models_count_copies():
    ways = {way: {"us": 1.0, "flops": 0, "kernels": 9, "copies": 3} for way in counting.WAYS}
    assert "| 12 / 12 / 12 |" in render({"taso": {"bert": {"cpu": ways}}})


@pytest.mark.slow
def test_sides_are_compiled_compared_and_timed():
    ((name, row),) = measured(["vgg_512x14"], "cpu", 1, 600.0)
    assert "wrong" not in row
    assert [row[side]["kernels"] for side in sides(name)] == [1, 2]
    assert all(row[side]["us"] > 0 and row[side]["error"] < 1e-4 for side in sides(name))


def test_what_was_measured_is_told_with_its_mean():
    ways = dict(zip(("none", "search", "reassociate"), (4.0, 2.0, 5.0), strict=True))
    page = render({"measured": {"cpu": {"bert": {way: {"us": us} for way, us in ways.items()}}}})
    assert "| bert | 4.0 | 2.0 | 5.0 | 0.500 | **1.250** |" in page
    assert "Geometric means: 0.500 and 1.250." in page


@pytest.mark.slow
def test_a_graph_of_the_record_is_of_this_code():
    assert rounded(planned("taso", "bert")) == stored()["taso"]["bert"]


def test_weights_are_distinct_and_of_unit_scale():
    net = Network()
    a, b = (net.weight(64, 128).value.numpy() for _ in range(2))
    assert not np.array_equal(a, b)
    assert np.isclose(a.std() * np.sqrt(128), 1.0, atol=0.1)
