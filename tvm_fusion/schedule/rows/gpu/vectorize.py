"""Vectorization of a row on a GPU: the order of its axes, and the width of loads and stores.

Where an unaligned row is no whole number of vectors, the next one begins inside a vector. Its first
and last vectors are shared with its neighbours; all others are its own. So it is loaded in aligned
vectors that cover it, with masked ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, sym, tirx

from ....core.tir.expressions import call_name, loads, variables
from ....core.tir.loops import substitute
from ....program.stage import Axis
from ...gpu.launch import VECTOR_BYTES, VECTOR_TYPES
from ...index.address import offset
from ..program.emit import static_volume
from ..program.passes import equal_axes, vector_axes
from ..program.row_program import RowProgram, RowStage

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


# Times less than 16 bytes at once, from which on vectors with masked ends are faster: two bytes.
MIN_NARROWING = 8


@dataclass(frozen=True)
class Vectorization:
    """How the threads of a row run over some axes."""

    axes: tuple[int, ...]  # a permutation; neighbouring elements differ in the last axis
    width: int = 1  # contiguous elements of a vector; 1 where accesses are not aligned vectors
    full_width: int = 1  # elements of 16 bytes
    # Whether a thread may load elements before it uses the first: their number is known, and no
    # condition guards them.
    is_unconditional: bool = False
    # Where rows begin in memory, if they are not aligned to vectors.
    origin: RowOrigin | None = None

    @property
    def accesses(self) -> int:
        """Accesses that move 16 bytes."""
        return self.full_width // self.width

    def count(self, size: int) -> int:
        """Count the vectors of a row of ``size`` elements, at most."""
        before = 0 if self.origin is None else self.width - 1
        return -(-(before + size) // self.width)


def vectorize(program: RowProgram, axes: Sequence[Axis]) -> Vectorization:
    """Choose the order of some axes, and the width of vectors along the last one.

    Every access that moves along the innermost axis must be contiguous and aligned. A vector has 16
    bytes of the widest type that does and that each row has elements of its own of. Unaligned rows
    of half types are loaded in aligned vectors, masked at both ends.

    Parameters
    ----------
    program
        All stages: those over axes of the same extents are vectorized alike, so that each thread
        finds the elements that it keeps in registers.
    axes
        Of a pass, or of the results of a row.
    """
    alike = [
        (stage, own)
        for stage in program.stages
        for own in [stage.inner if stage.inner and stage.reduce else stage.loop_axes]
        if equal_axes(own, axes)
    ]
    order, fused = vector_axes([stage for stage, _ in alike], [own for _, own in alike])
    ordered = [(stage, [own[i] for i in order]) for stage, own in alike]
    if not axes or any(axis.size is None for axis in axes):
        return Vectorization(tuple(order))
    if any(
        (stage.inner and stage.reduce) or _is_conditional(stage, own[-1]) for stage, own in ordered
    ):
        return Vectorization(tuple(order))
    width, whole = _widths(program, ordered, fused)
    if len(axes) == 1 and width * MIN_NARROWING <= whole:
        loops = [(stage, own[0]) for stage, own in ordered]
        accesses = [
            RowVectorAccess(stage, axis, *found)
            for stage, axis in loops
            for found in _accesses(program, stage, [axis])
        ]
        unaligned = find_origin(loops, accesses, whole)
        if unaligned is not None:
            width, origin = unaligned
            return Vectorization(tuple(order), width, whole, True, origin)
    return Vectorization(tuple(order), width, whole, is_unconditional=True)


def lanes_per_access(dtype: str, width: int) -> int:
    """Count the elements of a vector that one access moves."""
    return min(width, VECTOR_BYTES // DataType(dtype).itemsize) if dtype in VECTOR_TYPES else 1


def is_vector(program: RowProgram, load: ir.TensorLoad, axis: Axis) -> bool:
    """Whether a load of an input is vectorized along an axis.

    Vectors are loaded before the elements of a pass are computed: none is indexed by these.
    """
    computed = [x for where in load.indices for x in loads(where) if program.is_internal(x.source)]
    return (
        not computed
        and not program.is_internal(load.source)
        and str(load.source.dtype) in VECTOR_TYPES
        and _mentions(load.indices, [axis])
    )


def is_streamed(load: ir.TensorLoad, rows: Sequence[Axis]) -> bool:
    """Whether each row loads elements of its own, which no other row brings into a cache."""
    return not rows or _mentions(load.indices, rows)


def streams_of(program: RowProgram, axes: Sequence[Axis]) -> int:
    """Count the inputs of which each row loads elements of its own along some axes."""
    found: list[ir.Var] = []
    for stage in program.stages:
        if not axes or not equal_axes(stage.loop_axes, axes):
            continue
        for load in stage.loads:
            is_one = is_vector(program, load, stage.loop_axes[-1]) and is_streamed(load, stage.rows)
            if is_one and load.source not in found:
                found.append(load.source)
    return len(found)


def shares_vectors(program: RowProgram) -> bool:
    """Whether all rows read the same vectors of an input, such as the scale of a norm."""
    return any(
        is_vector(program, load, stage.loop_axes[-1]) and not is_streamed(load, stage.rows)
        for stage in program.stages
        if stage.loop_axes
        for load in stage.loads
    )


def _widths(
    program: RowProgram, alike: Sequence[tuple[RowStage, Sequence[Axis]]], fused: int
) -> tuple[int, int]:
    """Find the elements of a vector, and those of 16 bytes."""
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
    program: RowProgram, stage: RowStage, axes: Sequence[Axis]
) -> list[tuple[ir.Var, Sequence[ir.Expr], bool]]:
    """List the vectorized accesses, and whether each row has its own of them."""
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
    """Whether all vectors along the last axis are contiguous and aligned."""
    last = axes[-1]
    size = last.size or 0
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range(tirx.IntImm("int64", 0), tirx.IntImm("int64", width)))
    position = offset(buffer, where)
    # A vector that continues in the next line of fused axes starts anywhere in its line, but all of
    # them at a multiple of the vector.
    start = vector * width if size % width == 0 else tirx.IntImm("int64", 0)
    outer = {} if size % width == 0 else {axis.var: start for axis in axes[-fused:-1]}
    moved = substitute(position, {**outer, last.var: start + lane})
    base = analyzer.simplify(moved - lane)
    if lane in variables(base):
        return False
    at_once = lanes_per_access(str(buffer.dtype), width)
    rest = analyzer.simplify(tirx.floormod(base, tirx.IntImm("int64", at_once)))
    return isinstance(rest, tirx.IntImm) and int(rest) == 0


def _is_conditional(stage: RowStage, axis: Axis) -> bool:
    """Whether elements along an axis are loaded only where a condition holds."""
    calls: list[ir.Call] = []
    for value in stage.values:
        tvm_ffi.structural_walk(value, (ir.Call, calls.append))
    return any(
        _mentions(load.indices, [axis])
        for call in calls
        if call_name(call) == "if_then_else"
        for branch in call.args[1:]
        for load in loads(branch)
    )


def _mentions(indices: Sequence[ir.Expr], axes: Sequence[Axis]) -> bool:
    used = [v for index in indices for v in variables(index)]
    return any(axis.var in used for axis in axes)
