"""Row programs on a CPU: one parallel loop over rows, every stage inside it as vectors."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx
from tvm.target import Target

from ..cpu import PARALLEL_WORK, Registers
from .emit import (
    Pairs,
    bind,
    integer,
    loop,
    nest,
    opaque,
    sequence,
    static_volume,
    unflatten,
    volume,
)
from .lanes import AtLane, Lanes
from .passes import Pass, are_vectors, plan_passes, unit_strides, vector_axes
from .peaks import with_plain_peaks
from .prefetch import Ahead, plan_hints
from .softmax import with_inverses
from .stages import Axis, RowStages, Stage, read_stages

# ``chunk(start, count, fresh)``: neighbouring elements; reductions skip those before ``fresh``.
Chunk = Callable[[ir.Expr, ir.Expr, ir.Expr | None], tirx.Stmt]
Piece = Callable[[Chunk], tirx.Stmt]
SHORT_WALK = 8  # elements of a row below which lanes across neighbouring rows do better
RUN = 256  # rows of a task that walks them one by one


def schedule_rows_cpu(func: tirx.PrimFunc, rows: int, target: Target) -> tirx.PrimFunc:
    """Run a row program as one parallel loop over its rows.

    Inside a row, stages over the same elements share a walk in vectors; reductions keep one
    partial result a lane. Where neighbouring rows are neighbours in memory and the elements of a
    row are not, the lanes are rows instead.

    Parameters
    ----------
    func : tirx.PrimFunc
        Canonical stages, as ``Program.prim_func`` gives them.
    rows : int
        Number of row axes; 0 for a single row without an axis.
    target : Target
        An LLVM target; decides the width of vectors.

    Returns
    -------
    tirx.PrimFunc
        The same function as loops, still over blocks.

    Raises
    ------
    ValueError
        If the function is not canonical.
    """
    program = with_plain_peaks(with_inverses(read_stages(func, rows)))
    width = 4 * Registers.of(target).lanes
    if not lanes_are_rows(program):
        schedule = _within_rows
    elif are_vectors(program):
        schedule = _across_rows
    else:
        schedule = _runs_of_rows
    return func.with_body(opaque("root", schedule(program, plan_passes(program), width)))


def row_by_number(
    func: tirx.PrimFunc, rows: int, target: Target
) -> Callable[[ir.Expr], tirx.Stmt] | None:
    """Write single rows, for kernels that compute rows on their own; ``None`` if lanes are rows.

    Parameters
    ----------
    func, rows, target
        As for :func:`schedule_rows_cpu`.
    """
    program = with_plain_peaks(with_inverses(read_stages(func, rows)))
    if lanes_are_rows(program):
        return None
    return _row(program, plan_passes(program), 4 * Registers.of(target).lanes)


def lanes_are_rows(program: RowStages) -> bool:
    """Whether vectors run over neighbouring rows: they do in memory, elements of a row do not."""
    if not program.rows or (program.rows[-1].size or SHORT_WALK) < 2:
        return False
    along_rows = along_walk = longest = 0
    for stage in program.stages:
        along_rows += unit_strides(stage, stage.rows[-1], program.internal)
        if stage.domain:
            along_walk += max(unit_strides(stage, a, program.internal) for a in stage.domain)
            order, fused = vector_axes([stage], [stage.domain])
            inner = [stage.domain[a] for a in order[len(order) - fused :]]
            longest = max(longest, static_volume(inner, SHORT_WALK))
    return longest < SHORT_WALK or along_rows > along_walk


def _within_rows(program: RowStages, passes: list[Pass], width: int) -> tirx.Stmt:
    """Vectors along the elements of a row; tasks are rows."""
    return loop("row", volume(program.rows), _row(program, passes, width), _kind(program))


def _row(program: RowStages, passes: list[Pass], width: int) -> Callable[[ir.Expr], tirx.Stmt]:
    count = volume(program.rows)
    hints = plan_hints(program, passes)

    def row(number: ir.Expr) -> tirx.Stmt:
        position = unflatten(number, program.rows)
        following = unflatten(tirx.min(number + 1, count - 1), program.rows)
        lanes = Lanes(program, passes, lambda lane: position)
        walks = [
            _walk_row(lanes, one.stages, width, Ahead(some, position, following))
            for one, some in zip(passes, hints, strict=True)
        ]
        return opaque("row", sequence(walks), lanes.buffers)

    return row


def _across_rows(program: RowStages, passes: list[Pass], width: int) -> tirx.Stmt:
    """Vectors along the last row axis; tasks are vectors of rows."""
    *outer, last = program.rows
    extent = integer(last.extent)
    width = power_of_two(last.size, width)
    chunks = sym.Analyzer().simplify(tirx.floordiv(extent + (width - 1), integer(width)))

    def task(number: ir.Expr) -> tirx.Stmt:
        position = unflatten(tirx.floordiv(number, chunks), outer)
        start = tirx.floormod(number, chunks) * width
        if last.size is not None:
            # The last vector moves back to fit; rows computed twice are stored twice, all alike.
            return vector(position, tirx.min(start, extent - width), integer(width))
        count = tirx.min(extent - start, integer(width))
        full = vector(position, start, integer(width))
        return tirx.IfThenElse(count >= width, full, vector(position, start, count))

    def vector(position: list[ir.Expr], start: ir.Expr, count: ir.Expr) -> tirx.Stmt:
        lanes = Lanes(program, passes, lambda lane: [*position, start + lane], width)
        body = sequence([_walk_rows(lanes, one.stages, count, width) for one in passes])
        return opaque("rows", body, lanes.buffers)

    return loop("task", volume(outer) * chunks, task, _kind(program))


def _runs_of_rows(program: RowStages, passes: list[Pass], width: int) -> tirx.Stmt:
    """One row after the other in registers, in runs along the last row axis.

    For windows and other short walks whose loads make no vectors. A run costs the divisions that
    recover its position once.
    """
    *outer, last = program.rows
    extent = integer(last.extent)
    length = last.size if last.size is not None and last.size <= RUN else RUN
    runs = sym.Analyzer().simplify(tirx.floordiv(extent + (length - 1), integer(length)))

    def task(number: ir.Expr) -> tirx.Stmt:
        position = unflatten(tirx.floordiv(number, runs), outer)
        start = tirx.floormod(number, runs) * length

        def row(place: ir.Expr) -> tirx.Stmt:
            lanes = Lanes(program, passes, lambda lane: [*position, start + place])
            body = sequence([_walk_row(lanes, one.stages, 1) for one in passes])
            return opaque("row", body, lanes.buffers)

        whole = last.size is not None and last.size % length == 0
        count = integer(length) if whole else tirx.min(extent - start, integer(length))
        return loop("place", count, row)

    return loop("run", volume(outer) * runs, task, _kind(program))


def _walk_rows(lanes: Lanes, stages: list[Stage], count: ir.Expr, size: int) -> tirx.Stmt:
    """One walk over several rows side by side."""

    def results(inner: list[list[Axis]], at: list[ir.Expr]) -> tirx.Stmt:
        def element(term: list[ir.Expr]) -> tirx.Stmt:
            return sequence(
                [
                    lanes.update(s, _fixed(bind(names, at) + bind(rest, term)), count, size)
                    for s, names, rest in zip(stages, inner, walked, strict=True)
                ]
            )

        walked = [s.domain[len(at) :] for s in stages]
        return _reduction(
            [lanes.start(s, size) for s in stages if not s.is_map],
            nest(walked[0], element),
            [
                lanes.finish(s, _fixed(bind(names, at)), count, size)
                for s, names in zip(stages, inner, strict=True)
                if not s.is_map
            ],
        )

    mixed = bool(stages[0].inner and stages[0].reduce)
    inner = [list(s.inner) if mixed else [] for s in stages]
    return nest(inner[0], lambda at: results(inner, at))


def _walk_row(
    lanes: Lanes, stages: list[Stage], width: int, ahead: Ahead | None = None
) -> tirx.Stmt:
    """One walk over one row."""
    first = stages[0]
    if not (first.inner and first.reduce):
        return _walk_axes(lanes, stages, [], width, ahead)
    # What is read from outside counts: a result is written once, after many reads.
    inside = [*first.targets, *lanes.program.internal]
    along_results, along_terms = (
        unit_strides(first, axes[-1], inside) for axes in (first.inner, first.reduce)
    )
    if unit_strides(first, first.inner[-1]) and along_results >= along_terms:
        return _walk_results(lanes, first, width)
    return nest(first.inner, lambda at: _walk_axes(lanes, stages, bind(first.inner, at), width))


def _walk_axes(
    lanes: Lanes, stages: list[Stage], known: Pairs, width: int, ahead: Ahead | None = None
) -> tirx.Stmt:
    """Walk all axes but the known ones, the last ones fused into vectors."""
    axes = [list(s.domain[len(known) :]) for s in stages]
    order, fused = vector_axes(stages, axes)
    axes = [[own[i] for i in order] for own in axes]
    split = len(order) - fused
    inner = axes[0][split:]
    size = power_of_two(_static(inner), width)

    def chunk_at(position: list[ir.Expr]) -> Chunk:
        def chunk(start: ir.Expr, count: ir.Expr, fresh: ir.Expr | None) -> tirx.Stmt:
            asked = ahead.ask(order, split, position, start, size) if ahead else []
            return sequence(
                [
                    *asked,
                    *(
                        lanes.update(s, element(own, start), count, size, fresh)
                        for s, own in zip(stages, axes, strict=True)
                    ),
                ]
            )

        def element(own: list[Axis], start: ir.Expr) -> AtLane:
            before = [*known, *bind(own[:split], position)]
            return lambda lane: [*before, *bind(own[split:], unflatten(start + lane, own[split:]))]

        return chunk

    pieces = _chunks(volume(inner), size)
    # Where one loop reads a row and writes another one, TVM may keep both in the same memory, and
    # a vector that moves back would read what was written before: it gets loops of its own.
    writes = any(s.is_map and any(map(lanes.program.is_internal, s.targets)) for s in stages)
    loops = [[piece] for piece in pieces] if writes else [pieces]

    def emit(some: list[Piece]) -> tirx.Stmt:
        def body(position: list[ir.Expr]) -> tirx.Stmt:
            return sequence([piece(chunk_at(position)) for piece in some])

        return nest(axes[0][:split], body)

    reductions = [s for s in stages if not s.is_map]
    return _reduction(
        [lanes.start(s, size) for s in reductions],
        sequence([emit(some) for some in loops]),
        [lanes.combine(s, _fixed(known), size) for s in reductions],
    )


def _walk_results(lanes: Lanes, stage: Stage, width: int) -> tirx.Stmt:
    """Lanes are neighbouring results of a reduction within the row."""
    *outer, last = stage.inner
    size = power_of_two(last.size, width)

    def results(position: list[ir.Expr]) -> tirx.Stmt:
        def chunk(start: ir.Expr, count: ir.Expr, _fresh: ir.Expr | None) -> tirx.Stmt:
            def at(lane: ir.Expr) -> Pairs:
                return [*bind(outer, position), (last.var, start + lane)]

            def element(term: list[ir.Expr]) -> tirx.Stmt:
                return lanes.update(
                    stage, lambda lane: at(lane) + bind(stage.reduce, term), count, size
                )

            return _reduction(
                [lanes.start(stage, size)],
                nest(stage.reduce, element),
                [lanes.finish(stage, at, count, size)],
            )

        return sequence([piece(chunk) for piece in _chunks(integer(last.extent), size)])

    return nest(outer, results)


def _chunks(extent: ir.Expr, size: int) -> list[Piece]:
    """Cut an extent into vectors: all whole ones first, then what is left.

    What does not fill a last one: a vector moved back over elements done before, of which
    reductions skip the old lanes; for symbolic extents a loop.
    """
    whole = sym.Analyzer().simplify(tirx.floordiv(extent, integer(size)))

    def full(chunk: Chunk) -> tirx.Stmt:
        return loop("chunk", whole, lambda c: chunk(c * size, integer(size), None))

    def rest(chunk: Chunk) -> tirx.Stmt:
        if not isinstance(extent, tirx.IntImm):
            return chunk(whole * size, tirx.floormod(extent, integer(size)), None)
        return chunk(extent - size, integer(size), integer(size - int(extent) % size))

    fits = int(extent) % size == 0 if isinstance(extent, tirx.IntImm) else size == 1
    return [full] if fits else [full, rest]


def _reduction(before: list[tirx.Stmt], body: tirx.Stmt, after: list[tirx.Stmt]) -> tirx.Stmt:
    return sequence([*before, body, *after])


def _fixed(pairs: Pairs) -> AtLane:
    return lambda lane: pairs


def power_of_two(extent: int | None, limit: int) -> int:
    """Largest power of two up to a limit and an extent: the vectors that machines have."""
    bound = limit if extent is None else min(extent, limit)
    return 1 << (max(bound, 1).bit_length() - 1)


def _static(axes) -> int | None:
    return None if any(a.size is None for a in axes) else static_volume(axes, 1)


def _kind(program: RowStages) -> int:
    """Whether the work is worth waking other threads."""
    row = sum(static_volume(s.domain, PARALLEL_WORK) for s in program.stages)
    work = row * static_volume(program.rows, PARALLEL_WORK)
    return tirx.ForKind.PARALLEL if work >= PARALLEL_WORK else tirx.ForKind.SERIAL
