"""Loops of one pass over a row, in vectors, or over several rows, one for each lane.

pass over a row:                         pass over rows:
    for vectors of the row:                  for element of the row:
        compute; partial reductions              the same, a row for each lane
    combine the lanes of each reduction
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx

from ...core.loops import index, loop, sequence
from ...program.stage import Axis
from .emit import Pairs, bind, nest, static_volume, unflatten, volume
from .passes import unit_strides, vector_axes
from .prefetch import Prefetch
from .row_program import RowStage
from .vectors_cpu import AtLane, CpuRowVectors

# ``chunk(start, count, first_new)``: neighbouring elements; reductions skip those before.
Chunk = Callable[[ir.Expr, ir.Expr, ir.Expr | None], tirx.Stmt]
Part = Callable[[Chunk], tirx.Stmt]


def pass_over_rows(
    lanes: CpuRowVectors, stages: list[RowStage], count: ir.Expr, size: int
) -> tirx.Stmt:
    """Write a pass over several rows, one for each lane."""

    def results(inner: list[list[Axis]], at: list[ir.Expr]) -> tirx.Stmt:
        def element(term: list[ir.Expr]) -> tirx.Stmt:
            return sequence(
                [
                    lanes.update(s, _fixed(bind(names, at) + bind(rest, term)), count, size)
                    for s, names, rest in zip(stages, inner, inner_axes, strict=True)
                ]
            )

        inner_axes = [s.loop_axes[len(at) :] for s in stages]
        return _reduction(
            [lanes.start(s, size) for s in stages if not s.is_map],
            nest(inner_axes[0], element),
            [
                lanes.finish(s, _fixed(bind(names, at)), count, size)
                for s, names in zip(stages, inner, strict=True)
                if not s.is_map
            ],
        )

    mixed = bool(stages[0].inner and stages[0].reduce)
    inner = [list(s.inner) if mixed else [] for s in stages]
    return nest(inner[0], lambda at: results(inner, at))


def pass_over_row(
    lanes: CpuRowVectors, stages: list[RowStage], width: int, prefetches: Prefetch | None = None
) -> tirx.Stmt:
    """Write a pass over one row."""
    first = stages[0]
    if not (first.inner and first.reduce):
        return _loop_over_axes(lanes, stages, [], width, prefetches)
    # Loads of inputs count: a result is stored once, after many loads.
    inside = [*first.targets, *lanes.program.internal]
    along_results, along_terms = (
        unit_strides(first, axes[-1], inside) for axes in (first.inner, first.reduce)
    )
    if unit_strides(first, first.inner[-1]) and along_results >= along_terms:
        return _loop_over_results(lanes, first, width)
    return nest(
        first.inner, lambda at: _loop_over_axes(lanes, stages, bind(first.inner, at), width)
    )


def _loop_over_axes(
    lanes: CpuRowVectors,
    stages: list[RowStage],
    known: Pairs,
    width: int,
    prefetches: Prefetch | None = None,
) -> tirx.Stmt:
    """Loop over all axes but the known ones, the last ones fused into vectors."""
    axes = [list(s.loop_axes[len(known) :]) for s in stages]
    order, fused = vector_axes(stages, axes)
    axes = [[own[i] for i in order] for own in axes]
    split = len(order) - fused
    inner = axes[0][split:]
    size = power_of_two(_static(inner), width)

    def chunk_at(position: list[ir.Expr]) -> Chunk:
        def chunk(start: ir.Expr, count: ir.Expr, first_new: ir.Expr | None) -> tirx.Stmt:
            hints = prefetches.issue(order, split, position, start, size) if prefetches else []
            return sequence(
                [
                    *hints,
                    *(
                        lanes.update(s, element(own, start), count, size, first_new)
                        for s, own in zip(stages, axes, strict=True)
                    ),
                ]
            )

        def element(own: list[Axis], start: ir.Expr) -> AtLane:
            before = [*known, *bind(own[:split], position)]
            return lambda lane: [*before, *bind(own[split:], unflatten(start + lane, own[split:]))]

        return chunk

    parts = _chunks(volume(inner), size)
    # Where one loop reads a row and writes another one, TVM may keep both in the same memory, and
    # a vector that moves back would read what was stored before: it gets loops of its own.
    writes = any(s.is_map and any(map(lanes.program.is_internal, s.targets)) for s in stages)
    loops = [[part] for part in parts] if writes else [parts]

    def emit(some: list[Part]) -> tirx.Stmt:
        def body(position: list[ir.Expr]) -> tirx.Stmt:
            return sequence([part(chunk_at(position)) for part in some])

        return nest(axes[0][:split], body)

    reductions = [s for s in stages if not s.is_map]
    return _reduction(
        [lanes.start(s, size) for s in reductions],
        sequence([emit(some) for some in loops]),
        [lanes.combine(s, _fixed(known), size) for s in reductions],
    )


def _loop_over_results(lanes: CpuRowVectors, stage: RowStage, width: int) -> tirx.Stmt:
    """Vectorize along neighbouring results of a reduction within the row."""
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

        return sequence([part(chunk) for part in _chunks(index(last.extent), size)])

    return nest(outer, results)


def _chunks(extent: ir.Expr, size: int) -> list[Part]:
    """Divide an extent into vectors: whole ones first, then the remainder.

    The remainder is a vector moved back over elements that are done, of which reductions skip the
    old lanes; for symbolic extents a loop.
    """
    whole = sym.Analyzer().simplify(tirx.floordiv(extent, index(size)))

    def full(chunk: Chunk) -> tirx.Stmt:
        return loop("chunk", whole, lambda c: chunk(c * size, index(size), None))

    def rest(chunk: Chunk) -> tirx.Stmt:
        if not isinstance(extent, tirx.IntImm):
            return chunk(whole * size, tirx.floormod(extent, index(size)), None)
        return chunk(extent - size, index(size), index(size - int(extent) % size))

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
