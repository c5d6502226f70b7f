"""Loops of one pass over a row, in vectors, or over several rows, one for each lane.

pass over a row:                         pass over rows:
    for vectors of the row:                  for element of the row:
        compute; partial reductions              the same, a row for each lane
    combine the lanes of each reduction

Where vectors are short (channels in blocks), neighbouring iterations have partial reductions of
their own: a sum waits for the one before it.
"""

from collections.abc import Callable, Sequence

from tvm import ir, sym, tirx

from ....core.tir.loops import index, loop, sequence
from ....program.stage import Axis
from ..program.emit import Pairs, bind, nest, static_volume, unflatten, volume
from ..program.passes import unit_strides, vector_axes
from ..program.row_program import RowStage
from .prefetch import Prefetch
from .vectors import AtLane, CpuRowVectors

# ``chunk(start, count, first_new)``: neighbouring elements; reductions skip those before.
Chunk = Callable[[ir.Expr, ir.Expr, ir.Expr | None], tirx.Stmt]
Part = Callable[[Chunk], tirx.Stmt]


def pass_over_rows(
    lanes: CpuRowVectors, stages: list[RowStage], count: ir.Expr, size: int, most: int
) -> tirx.Stmt:
    """Write a pass over several rows, one for each lane, with up to ``most`` partial results."""

    def results(inner: list[list[Axis]], at: list[ir.Expr]) -> tirx.Stmt:
        def element(term: list[ir.Expr], part: int) -> tirx.Stmt:
            return sequence(
                [
                    lanes.update(
                        s, _fixed(bind(names, at) + bind(rest, term)), count, size, part=part
                    )
                    for s, names, rest in zip(stages, inner, inner_axes, strict=True)
                ]
            )

        inner_axes = [s.loop_axes[len(at) :] for s in stages]
        reductions = [
            (s, _fixed(bind(names, at)))
            for s, names in zip(stages, inner, strict=True)
            if not s.is_map
        ]
        parts = _parts(inner_axes[0], most // size) if reductions else 1
        return _reduction(
            [lanes.start(s, parts * size) for s, _ in reductions],
            _nest(inner_axes[0], parts, element),
            [
                sequence([lanes.fold(s, size, parts), lanes.finish(s, place, count, size)])
                for s, place in reductions
            ],
        )

    mixed = bool(stages[0].inner and stages[0].reduce)
    inner = [list(s.inner) if mixed else [] for s in stages]
    return nest(inner[0], lambda at: results(inner, at))


def pass_over_row(
    lanes: CpuRowVectors,
    stages: list[RowStage],
    width: int,
    prefetches: Prefetch | None = None,
    most: int = 1,
) -> tirx.Stmt:
    """Write a pass over one row, with up to ``most`` partial results of a reduction."""
    first = stages[0]
    if not (first.inner and first.reduce):
        return _loop_over_axes(lanes, stages, [], width, prefetches, most)
    # Loads of inputs count: a result is stored once, after many loads.
    inside = [*first.targets, *lanes.program.internal]
    along_results, along_terms = (
        unit_strides(first, axes[-1], inside) for axes in (first.inner, first.reduce)
    )
    if unit_strides(first, first.inner[-1]) and along_results >= along_terms:
        return _loop_over_results(lanes, first, width, most)
    return nest(
        first.inner, lambda at: _loop_over_axes(lanes, stages, bind(first.inner, at), width)
    )


def _loop_over_axes(
    lanes: CpuRowVectors,
    stages: list[RowStage],
    known: Pairs,
    width: int,
    prefetches: Prefetch | None = None,
    most: int = 1,
) -> tirx.Stmt:
    """Loop over all axes but the known ones, the last ones fused into vectors."""
    axes = [list(s.loop_axes[len(known) :]) for s in stages]
    order, fused = vector_axes(stages, axes)
    axes = [[own[i] for i in order] for own in axes]
    split = len(order) - fused
    inner = axes[0][split:]
    size = power_of_two(_static(inner), width)
    reductions = [s for s in stages if not s.is_map]
    parts = _parts(axes[0][:split], most // size) if reductions else 1

    def chunk_at(position: list[ir.Expr], part: int) -> Chunk:
        def chunk(start: ir.Expr, count: ir.Expr, first_new: ir.Expr | None) -> tirx.Stmt:
            hints = prefetches.issue(order, split, position, start, size) if prefetches else []
            return sequence(
                [
                    *hints,
                    *(
                        lanes.update(s, element(own, start), count, size, first_new, part)
                        for s, own in zip(stages, axes, strict=True)
                    ),
                ]
            )

        def element(own: list[Axis], start: ir.Expr) -> AtLane:
            before = [*known, *bind(own[:split], position)]
            return lambda lane: [*before, *bind(own[split:], unflatten(start + lane, own[split:]))]

        return chunk

    chunks = _chunks(volume(inner), size)
    # Where one loop reads a row and writes another one, TVM may keep both in the same memory, and
    # a vector that moves back would read what was stored before: it gets loops of its own.
    writes = any(s.is_map and any(map(lanes.program.is_internal, s.targets)) for s in stages)
    loops = [[chunk] for chunk in chunks] if writes else [chunks]

    def emit(some: list[Part]) -> tirx.Stmt:
        def body(position: list[ir.Expr], part: int) -> tirx.Stmt:
            return sequence([chunk(chunk_at(position, part)) for chunk in some])

        return _nest(axes[0][:split], parts, body)

    return _reduction(
        [lanes.start(s, parts * size) for s in reductions],
        sequence([emit(some) for some in loops]),
        [lanes.combine(s, _fixed(known), parts * size) for s in reductions],
    )


def _loop_over_results(lanes: CpuRowVectors, stage: RowStage, width: int, most: int) -> tirx.Stmt:
    """Vectorize along neighbouring results of a reduction within the row."""
    *outer, last = stage.inner
    size = power_of_two(last.size, width)
    parts = _parts(stage.reduce, most // size)

    def results(position: list[ir.Expr]) -> tirx.Stmt:
        def chunk(start: ir.Expr, count: ir.Expr, _fresh: ir.Expr | None) -> tirx.Stmt:
            def at(lane: ir.Expr) -> Pairs:
                return [*bind(outer, position), (last.var, start + lane)]

            def element(term: list[ir.Expr], part: int) -> tirx.Stmt:
                return lanes.update(
                    stage,
                    lambda lane: at(lane) + bind(stage.reduce, term),
                    count,
                    size,
                    part=part,
                )

            return _reduction(
                [lanes.start(stage, parts * size)],
                _nest(stage.reduce, parts, element),
                [lanes.fold(stage, size, parts), lanes.finish(stage, at, count, size)],
            )

        return sequence([part(chunk) for part in _chunks(index(last.extent), size)])

    return nest(outer, results)


def _parts(axes: Sequence[Axis], most: int) -> int:
    """Count the iterations of the last axis that have partial results of their own."""
    return power_of_two(axes[-1].size, most) if axes and axes[-1].size is not None else 1


def _nest(
    axes: Sequence[Axis], parts: int, body: Callable[[list[ir.Expr], int], tirx.Stmt]
) -> tirx.Stmt:
    """Write serial loops whose last one runs ``parts`` iterations at a time, each with its part."""
    if parts == 1:
        return nest(axes, lambda position: body(position, 0))
    *outer, last = axes
    whole, rest = divmod(last.size or 0, parts)

    def innermost(position: list[ir.Expr]) -> tirx.Stmt:
        def several(first: ir.Expr, count: int) -> tirx.Stmt:
            return sequence([body([*position, first + part], part) for part in range(count)])

        many = loop(last.var.name, whole, lambda n: several(n * parts, parts))
        return sequence([many, several(index(whole * parts), rest)])

    return nest(outer, innermost)


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
