"""How the threads of a GPU take the elements of a row: in which order, how many side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, sym, tirx

from ...core.expressions import call_name
from ..expressions import contains, loads_of, row_major_offset, substitute, variables_of
from ..gpu.launch import VECTOR_BYTES, VECTOR_TYPES
from .covering import Access, Origin, cover
from .emit import static_volume
from .passes import equal_axes, vector_axes
from .stages import Axis, RowStages, Stage

# Times less than 16 bytes at once, from which on vectors with masked ends are faster: two bytes.
NARROW = 8


@dataclass(frozen=True)
class Order:
    """How threads walk some axes.

    Attributes
    ----------
    axes : tuple of int
        A permutation; neighbouring elements differ in the last axis.
    width : int
        Elements that a thread takes side by side; 1 where vectors do not fit.
    whole : int
        Elements of 16 bytes, had they the right place.
    is_ahead : bool
        Whether a thread may read elements before it uses the first: their number is known, and
        nothing says that some do not exist.
    origin : Origin or None
        Where rows begin in memory, if that is not at whole vectors.
    """

    axes: tuple[int, ...]
    width: int = 1
    whole: int = 1
    is_ahead: bool = False
    origin: Origin | None = None

    @property
    def parts(self) -> int:
        """Accesses that move 16 bytes."""
        return self.whole // self.width

    def vectors(self, size: int) -> int:
        """Vectors of so many elements, at most."""
        before = 0 if self.origin is None else self.width - 1
        return -(-(before + size) // self.width)


def order_of(program: RowStages, axes: Sequence[Axis]) -> Order:
    """Choose the order and the width in which threads take elements of some axes.

    Whatever moves along the innermost axis must move by one element, and start at a multiple of the
    vector. A vector has 16 bytes of the widest type that does and that each row has its own of.
    Where rows of half types begin anywhere, those of memory cover them.

    Parameters
    ----------
    program : RowStages
        All stages: those over axes of the same extents go the same way, so that each thread finds
        again what it has kept.
    axes : sequence of Axis
        Of a walk, or of the results of a row.
    """
    alike = [
        (stage, own)
        for stage in program.stages
        for own in [stage.inner if stage.inner and stage.reduce else stage.domain]
        if equal_axes(own, axes)
    ]
    order, fused = vector_axes([stage for stage, _ in alike], [own for _, own in alike])
    ordered = [(stage, [own[i] for i in order]) for stage, own in alike]
    if not axes or any(axis.size is None for axis in axes):
        return Order(tuple(order))
    if any((stage.inner and stage.reduce) or _is_choosy(stage, own[-1]) for stage, own in ordered):
        return Order(tuple(order))
    width, whole = _widths(program, ordered, fused)
    if len(axes) == 1 and width * NARROW <= whole:
        walks = [(stage, own[0]) for stage, own in ordered]
        accesses = [
            Access(stage, axis, *found)
            for stage, axis in walks
            for found in _accesses(program, stage, [axis])
        ]
        covered = cover(walks, accesses, whole)
        if covered is not None:
            width, origin = covered
            return Order(tuple(order), width, whole, True, origin)
    return Order(tuple(order), width, whole, is_ahead=True)


def lanes_at_once(dtype: str, width: int) -> int:
    """How many of a vector's elements one access moves."""
    return min(width, VECTOR_BYTES // DataType(dtype).itemsize) if dtype in VECTOR_TYPES else 1


def is_vector(program: RowStages, load: ir.TensorLoad, axis: Axis) -> bool:
    """Whether a load of an input is read in vectors along an axis that has a width."""
    return (
        not program.is_internal(load.source)
        and str(load.source.dtype) in VECTOR_TYPES
        and _mentions(load.indices, [axis])
    )


def is_streamed(load: ir.TensorLoad, rows: Sequence[Axis]) -> bool:
    """Whether each row has elements of its own there, which no other brings near."""
    return not rows or _mentions(load.indices, rows)


def streams_of(program: RowStages, axes: Sequence[Axis]) -> int:
    """Count the inputs of which each row reads elements of its own along some axes."""
    found: list[ir.Var] = []
    for stage in program.stages:
        if not axes or not equal_axes(stage.domain, axes):
            continue
        for load in stage.loads:
            is_one = is_vector(program, load, stage.domain[-1]) and is_streamed(load, stage.rows)
            if is_one and not contains(found, load.source):
                found.append(load.source)
    return len(found)


def _widths(
    program: RowStages, alike: Sequence[tuple[Stage, Sequence[Axis]]], fused: int
) -> tuple[int, int]:
    """Find how many elements go at once, and how many 16 bytes are."""
    accesses = [(*found, own) for stage, own in alike for found in _accesses(program, stage, own)]
    streams = [
        DataType(str(buffer.dtype)).itemsize for buffer, _, streamed, _ in accesses if streamed
    ]
    run = static_volume(alike[0][1][-fused:], 1)
    width = whole = VECTOR_BYTES // max(streams, default=VECTOR_BYTES)
    while width > 1 and not (
        run % width == 0
        and all(_fits(buffer, where, own, fused, width) for buffer, where, _, own in accesses)
    ):
        width //= 2
    return width, whole


def _accesses(
    program: RowStages, stage: Stage, axes: Sequence[Axis]
) -> list[tuple[ir.Var, Sequence[ir.Expr], bool]]:
    """List what is read and written in vectors, and whether each row has its own of it."""
    found = [
        (load.source, load.indices, is_streamed(load, stage.rows))
        for load in stage.loads
        if is_vector(program, load, axes[-1])
    ]
    if stage.is_map:
        found += [
            (target, where, True)
            for target, where in zip(stage.targets, stage.indices, strict=True)
            if not program.is_internal(target) and str(target.dtype) in VECTOR_TYPES
        ]
    return found


def _fits(
    buffer: ir.Var, where: Sequence[ir.Expr], axes: Sequence[Axis], fused: int, width: int
) -> bool:
    """Whether all vectors along the last axis lie side by side and are aligned."""
    last = axes[-1]
    size = last.size or 0
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range(tirx.IntImm("int64", 0), tirx.IntImm("int64", width)))
    position = row_major_offset(buffer, where)
    # A vector that goes on in the next line of fused axes starts somewhere in its line, but all of
    # them at a multiple of the vector.
    start = vector * width if size % width == 0 else tirx.IntImm("int64", 0)
    outer = [] if size % width == 0 else [(axis.var, start) for axis in axes[-fused:-1]]
    moved = _substituted(position, [*outer, (last.var, start + lane)])
    base = analyzer.simplify(moved - lane)
    if contains(variables_of(base), lane):
        return False
    at_once = lanes_at_once(str(buffer.dtype), width)
    rest = analyzer.simplify(tirx.floormod(base, tirx.IntImm("int64", at_once)))
    return isinstance(rest, tirx.IntImm) and int(rest) == 0


def _substituted(expr: ir.Expr, pairs: Sequence[tuple[ir.Var, ir.Expr]]) -> ir.Expr:
    typed = [
        (var, new if str(var.ty.dtype) == "int64" else tirx.Cast(str(var.ty.dtype), new))
        for var, new in pairs
    ]
    return substitute(expr, typed)


def _is_choosy(stage: Stage, axis: Axis) -> bool:
    """Whether elements along an axis are read only where a condition holds."""
    calls: list[ir.Call] = []
    for value in stage.values:
        tvm_ffi.structural_walk(value, (ir.Call, calls.append))
    return any(
        _mentions(load.indices, [axis])
        for call in calls
        if call_name(call) == "if_then_else"
        for branch in call.args[1:]
        for load in loads_of(branch)
    )


def _mentions(indices: Sequence[ir.Expr], axes: Sequence[Axis]) -> bool:
    used = [v for index in indices for v in variables_of(index)]
    return any(contains(used, axis.var) for axis in axes)
