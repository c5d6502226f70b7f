"""Expressions of many variables: TVM's code generator puts the variables in place."""

import itertools
import time

import numpy as np
import pytest
import tvm
from tvm import ir, tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion._tvm.ir.structural import structural_walk
from tvm_fusion.core.tir.loops import block, loop
from tvm_fusion.device import parse
from tvm_fusion.lower import flatten as let
from tvm_fusion.pipeline import tir_pipeline  # noqa: F401  (registers the pipeline)

LANES = 32


def thrice(depth):
    """Write ``x -> x * x * x / (1 + x * x)`` so many times over, each of a variable."""
    x, y = declare((LANES,), "float32", "x"), declare((LANES,), "float32", "y")

    def element(i):
        names = [tirx.Var(f"v{n}", "float32") for n in range(depth + 1)]
        one = tirx.const(1, "float32")
        value = names[-1]
        for before, var in reversed(list(itertools.pairwise(names))):
            value = tirx.Let(var, before * before * before / (one + before * before), value)
        value = tirx.Let(names[0], tirx.BufferLoad(x, [i]), value)
        return tirx.BufferStore(y, value, [i])

    body = loop("i", LANES, element, tirx.ForKind.VECTORIZED)
    attrs = {"s_tir": True, "global_symbol": "main", "tirx.is_scheduled": True}
    return tirx.PrimFunc([x, y], block("root", body)).with_attrs(attrs)


def built(depth):
    target = parse("cpu").tvm_target()
    return tvm.tirx.build(tvm.IRModule({"main": thrice(depth)}), target, pipeline="tvm_fusion")


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_many_variables_compile_and_are_right(depth):
    x = np.random.default_rng().standard_normal(LANES).astype("float32")
    y, expected = np.zeros_like(x), x.astype("float64")
    built(depth)["main"](x, y)
    error = np.zeros(LANES)  # relative; a step rounds five times and raises what there is
    for _ in range(depth):
        error = (3 - 2 * expected**2 / (1 + expected**2)) * error + 5 * 2.0**-24
        expected = expected**3 / (1 + expected**2)
    assert (np.abs(y - expected) <= 1.1 * error * np.abs(expected) + 1e-30).all()


def test_they_stay_vectors_in_registers():
    source = built(8).inspect_source("ll")
    assert "fdiv <" in source
    assert "TVMBackendAllocWorkspace" not in source


def nested(count):
    """Chain variables, each over a variable that is bound inside of its value."""
    x = tirx.Var("x", "float32")
    names = [tirx.Var(f"v{n}", "float32") for n in range(count)]
    value = names[-1]
    for before, var in reversed(list(itertools.pairwise([x, *names]))):
        inner = tirx.Var("inner", "float32")
        value = tirx.Let(var, tirx.Let(inner, before * before, inner + inner / before), value)
    return value


def test_stores_read_what_was_stored_before():
    made = let._Temporaries()
    result = made.expr(nested(500))  # in quadratic time and more, minutes
    assert len(made.stores) == len(made.allocations) == 1000
    stored: set[int] = set()
    for store in [*made.stores, tirx.Evaluate(result)]:
        reads: list[ir.TensorLoad] = []
        structural_walk(store, (ir.TensorLoad, reads.append))
        assert {hash(read.source) for read in reads} <= stored
        bound: list[tirx.Let] = []
        structural_walk(store, (tirx.Let, bound.append))
        assert not bound
        if isinstance(store, tirx.BufferStore):
            stored.add(hash(store.buffer))


def test_nodes_are_counted_with_variables_in_place():
    x, y = tirx.Var("x", "float32"), tirx.Var("y", "float32")
    square = tirx.Let(y, x + x, y * y)  # itself, y, x + x, and y * y: 1 + 3 + 3 + 7
    assert let._inlined_nodes(square) == 14
    assert let._inlined_nodes(x * x) == 0
    assert let._inlined_nodes(nested(500)) > 2**500


@pytest.mark.slow
def test_tvm_takes_its_time(monkeypatch):
    """When this fails, `lower.let` can go."""

    def seconds(depth):
        start = time.process_time()
        built(depth)
        return time.process_time() - start

    most, least = let.MOST_NODES, {}
    for _ in range(3):  # in turns: what else the machine does only adds
        for nodes in (most, 10**12):
            monkeypatch.setattr(let, "MOST_NODES", nodes)
            least[nodes] = min(least.get(nodes, np.inf), seconds(7))
    assert least[10**12] > 1.5 * least[most]


def test_a_loop_and_its_remainder_bind_the_same_variable():
    """Values that read nothing: TVM's simplifier keeps them by variable."""
    y, var = declare((LANES + 4,), "float32", "y"), tirx.Var("v", "float32")

    def element(i):
        number = i.astype("float32") * tirx.const(0.25, "float32")
        return tirx.BufferStore(y, tirx.Let(var, number, var * var + var), [i])

    first = loop("i", LANES, element, tirx.ForKind.VECTORIZED)
    rest = loop("j", 4, lambda j: element(j + LANES), tirx.ForKind.VECTORIZED)
    attrs = {"s_tir": True, "global_symbol": "main", "tirx.is_scheduled": True}
    func = tirx.PrimFunc([y], block("root", tirx.SeqStmt([first, rest]))).with_attrs(attrs)
    mod = tvm.IRModule({"main": func})
    result = np.zeros(LANES + 4, "float32")
    tvm.tirx.build(mod, parse("cpu").tvm_target(), pipeline="tvm_fusion")["main"](result)
    numbers = np.arange(LANES + 4) / 4
    np.testing.assert_allclose(result, numbers * numbers + numbers, rtol=1e-6)
