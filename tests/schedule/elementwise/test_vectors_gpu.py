"""Vectors of maps on a GPU: which loads are of whole vectors, and what that takes to find out."""

import pytest
from tvm import tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import index
from tvm_fusion.program.stage import Axis
from tvm_fusion.schedule.elementwise.gpu import vectors
from tvm_fusion.schedule.elementwise.iteration_space import IterationSpace, Store

ROWS, COLUMNS = 1 << 12, 32  # of each part


def concatenation(parts):
    """Concatenate along the last axis: conditions nest as deep as there are parts."""
    row, column = (tirx.Var(name, "int64") for name in ("row", "column"))
    sources = [
        declare([index(ROWS), index(COLUMNS)], "float16", f"x{n}", scope="global")
        for n in range(parts)
    ]
    value = load(sources[-1], [row, column - COLUMNS * (parts - 1)])
    for n in reversed(range(parts - 1)):
        part = load(sources[n], [row, column - COLUMNS * n])
        value = tirx.if_then_else(column < COLUMNS * (n + 1), part, value)
    width = COLUMNS * parts
    out = declare([index(ROWS), index(width)], "float16", "out", scope="global")
    axes = Axis(row, index(ROWS)), Axis(column, index(width))
    return IterationSpace(axes, (Store(out, (row, column), value),), frozenset())


@pytest.mark.parametrize("parts", [2, 24])
def test_a_condition_of_a_concatenation_is_looked_at_once(parts, monkeypatch):
    asked = []
    is_shared = vectors._is_shared
    monkeypatch.setattr(vectors, "_is_shared", lambda *a: asked.append(a[1]) or is_shared(*a))
    found = vectors.vectors(concatenation(parts))
    assert found is not None
    assert len(found.loads) == parts
    # Of each part but the last its condition, its negation, and both with those before.
    assert len(asked) <= 4 * parts
