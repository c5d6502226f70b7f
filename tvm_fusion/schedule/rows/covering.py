"""Rows that begin anywhere in memory: which whole vectors cover them.

Where a row has no whole number of vectors, the next one begins in the middle of one. Its first and
its last vector are its neighbours' as well; all others are its own. So it is walked in vectors of
memory, the ends of which are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ..expressions import contains, loads_of, row_major_offset, substitute, variables_of
from .stages import Axis, Stage

FEWEST = 2  # vectors of a row
# How much narrower vectors are where rows share something, such as the scale of a norm. That lies
# elsewhere in a vector for each row and is read element by element, and those of neighbouring
# threads are then near to each other.
NARROWER = 4


@dataclass(frozen=True)
class Origin:
    """Where rows begin in memory, up to a number of whole vectors.

    Attributes
    ----------
    stage : Stage
        Whose row axes the position mentions.
    position : Expr
        In elements.
    """

    stage: Stage
    position: ir.Expr


@dataclass(frozen=True)
class Access:
    """What a stage reads or writes in vectors along an axis: ``buffer[indices]``.

    Attributes
    ----------
    is_streamed : bool
        Whether each row has its own of it.
    """

    stage: Stage
    axis: Axis
    buffer: ir.Var
    indices: Sequence[ir.Expr]
    is_streamed: bool


def cover(
    stages: Sequence[tuple[Stage, Axis]], accesses: Sequence[Access], whole: int
) -> tuple[int, Origin] | None:
    """Find where rows begin, if all that each has its own of begins at the same place of a vector.

    Parameters
    ----------
    stages : sequence of (Stage, Axis)
        Of the walks, each with its only axis. Their elements are computed at the masked ends, too,
        at positions inside the row; so no position may depend on what is read.
    accesses : sequence of Access
        What is read or written in vectors, had rows the right places.
    whole : int
        Elements of 16 bytes.

    Returns
    -------
    (int, Origin) or None
        Elements of a vector, and where rows begin; ``None`` where vectors do not cover rows, or
        rows are too short for that.
    """
    (_, axis), *_ = stages
    streams = [access for access in accesses if access.is_streamed]
    width = whole if len(streams) == len(accesses) else whole // NARROWER
    if not streams or (axis.size or 0) < FEWEST * width:
        return None
    if any(loads_of(i) for stage, _ in stages for load in stage.loads for i in load.indices):
        return None
    starts = [_start(row_major_offset(a.buffer, a.indices), a.axis) for a in streams]
    origin = Origin(streams[0].stage, starts[0])
    for access, start in zip(streams, starts, strict=True):
        rows = zip(access.stage.rows, origin.stage.rows, strict=True)
        if start is None or not _is_multiple(
            substitute(start, [(a.var, b.var) for a, b in rows]) - origin.position, width
        ):
            return None
    return width, origin


def _is_multiple(position: ir.Expr, width: int) -> bool:
    rest = sym.Analyzer().simplify(tirx.floormod(position, tirx.IntImm("int64", width)))
    return isinstance(rest, tirx.IntImm) and int(rest) == 0


def _start(position: ir.Expr, axis: Axis) -> ir.Expr | None:
    """Position of a row's first element, if the others follow one by one."""
    found = sym.detect_linear_equation(position, [axis.var])
    if not found:
        return None
    step, start = found
    is_next = isinstance(step, tirx.IntImm) and int(step) == 1
    return start if is_next and not contains(variables_of(start), axis.var) else None
