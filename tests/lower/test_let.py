"""Expressions of many variables: TVM's code generator puts the variables in place."""

import itertools
import time

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_fusion._tvm.buffer import declare
from tvm_fusion.core.loops import block, loop
from tvm_fusion.device import parse
from tvm_fusion.lower import let
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
    for _ in range(depth):
        expected = expected**3 / (1 + expected**2)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-30)


def test_they_stay_vectors_in_registers():
    source = built(8).inspect_source("ll")
    assert "fdiv <" in source
    assert "TVMBackendAllocWorkspace" not in source


def test_tvm_takes_its_time(monkeypatch):
    """When this fails, `lower.let` can go."""

    def seconds(depth):
        start = time.process_time()
        built(depth)
        return time.process_time() - start

    seconds(1)
    with_registers = seconds(8)
    monkeypatch.setattr(let, "MOST_NODES", 10**12)
    assert seconds(8) > 1.5 * with_registers
