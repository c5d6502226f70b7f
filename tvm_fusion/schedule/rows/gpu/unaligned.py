"""Unaligned rows: aligned vectors that cover a row, their head and tail masked.

Where a row is no whole number of vectors, the next one begins inside a vector. Its first and last
vectors are shared with its neighbours; all others are its own. So it is loaded in aligned vectors,
with masked ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ....core.tir.expressions import loads, substitute, variables
from ....program.stage import Axis
from ...index.address import offset
from ..program.row_program import RowStage

MIN_VECTORS = 2  # of a row
# How much narrower vectors are where rows share something, such as the scale of a norm: that has
# another offset in a vector for each row and is loaded by elements, and those of neighbouring
# threads are then near each other. Long rows of one stream half as much: layer norm + GELU of
# 4014x11953 float16 takes 58.7 us instead of 73.3 on an H200, of 8192x4095 41.3 instead of 44.9;
# of 24507x2183 bfloat16 it gains nothing.
NARROWING = 4
NARROWING_OF_ONE = 2
MIN_LONG_ROW = 4000  # elements


@dataclass(frozen=True)
class RowOrigin:
    """Where rows begin in memory, modulo whole vectors."""

    stage: RowStage  # whose row axes the position mentions
    position: ir.Expr  # in elements


@dataclass(frozen=True)
class RowVectorAccess:
    """A vectorized access of a stage along an axis: ``buffer[indices]``."""

    stage: RowStage
    axis: Axis
    buffer: ir.Var
    indices: Sequence[ir.Expr]
    is_streamed: bool  # whether each row has elements of its own


def find_origin(
    stages: Sequence[tuple[RowStage, Axis]], accesses: Sequence[RowVectorAccess], whole: int
) -> tuple[int, RowOrigin] | None:
    """Find where rows begin, if all streamed accesses have the same offset in a vector.

    Parameters
    ----------
    stages
        Of the loops, each with its only axis. Masked lanes are computed, too, at positions inside
        the row; so no position may depend on loaded values.
    accesses
        What would be vectorized if rows were aligned.
    whole
        Elements of 16 bytes.

    Returns
    -------
    (int, Origin) or None
        Elements of a vector, and where rows begin; ``None`` where offsets differ, or rows are too
        short.
    """
    (_, axis), *_ = stages
    streams = [access for access in accesses if access.is_streamed]
    buffers = {access.buffer for access in streams}
    is_long = len(buffers) <= 2 and (axis.size or 0) >= MIN_LONG_ROW  # one read, one written
    narrowing = NARROWING_OF_ONE if is_long else NARROWING
    width = whole if len(streams) == len(accesses) else whole // narrowing
    if not streams or (axis.size or 0) < MIN_VECTORS * width:
        return None
    if any(loads(i) for stage, _ in stages for load in stage.loads for i in load.indices):
        return None
    starts = [_start(offset(a.buffer, a.indices), a.axis) for a in streams]
    origin = RowOrigin(streams[0].stage, starts[0])
    for access, start in zip(streams, starts, strict=True):
        rows = zip(access.stage.rows, origin.stage.rows, strict=True)
        if start is None or not _is_multiple(
            substitute(start, {a.var: b.var for a, b in rows}) - origin.position, width
        ):
            return None
    return width, origin


def _is_multiple(position: ir.Expr, width: int) -> bool:
    rest = sym.Analyzer().simplify(tirx.floormod(position, tirx.IntImm("int64", width)))
    return isinstance(rest, tirx.IntImm) and int(rest) == 0


def _start(position: ir.Expr, axis: Axis) -> ir.Expr | None:
    """Return the position of a row's first element, if the row is contiguous."""
    found = sym.detect_linear_equation(position, [axis.var])
    if not found:
        return None
    step, start = found
    is_next = isinstance(step, tirx.IntImm) and int(step) == 1
    return start if is_next and axis.var not in variables(start) else None
