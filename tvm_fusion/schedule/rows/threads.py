"""Stages of the rows of a thread block, statement by statement over its threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, s_tir, sym, tirx

from .block import Block, Spot
from .emit import (
    Pairs,
    assign,
    bind,
    element,
    integer,
    loop,
    nest,
    sequence,
    store_all,
    unflatten,
    volume,
)
from .passes import Pass, equal_axes, vector_axes
from .stages import Axis, Stage
from .storage import items_of

MAX_UNROLLED = 32  # iterations; arrays in registers need constant indices


def emit_walk(block: Block, one: Pass) -> list[tirx.Stmt]:
    """Emit one walk over the rows of a block, then what their threads combine."""
    first = one.stages[0]
    every = block.geometry.every
    if first.inner and first.reduce:
        return [every(lambda r, t: _results(block, first, r, t))]
    reductions = [stage for stage in one.stages if stage.combine is not None]
    stmts = [every(_starting(block, stage)) for stage in reductions]
    stmts.append(every(lambda r, t: _elements(block, one.stages, r, t)))
    for stage in reductions:
        stmts.append(_combine(block, stage))
        if not block.program.is_internal(stage.targets[0]):
            stmts.append(every(_publishing(block, stage)))
    return stmts


def _elements(block: Block, stages: Sequence[Stage], r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
    """Take every ``threads``-th element of a row, from the thread's own on."""
    order = _order(block, stages[0].domain)
    axes = [[stage.domain[i] for i in order] for stage in stages]

    def at(flat: ir.Expr, item: ir.Expr) -> tirx.Stmt:
        spot = Spot(r, t, item)
        return sequence(
            [
                _element(block, stage, bind(own, unflatten(flat, own)), spot)
                for stage, own in zip(stages, axes, strict=True)
            ]
        )

    return _items(block, axes[0], t, at)


def _results(block: Block, stage: Stage, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
    """Compute whole results, where a reduction has several a row."""
    inner = [stage.inner[i] for i in _order(block, stage.inner)]
    terms = block.terms(stage)

    def at(flat: ir.Expr, item: ir.Expr) -> tirx.Stmt:
        spot = Spot(r, t, item)
        known = bind(inner, unflatten(flat, inner))

        def term(walked: list[ir.Expr]) -> tirx.Stmt:
            return _element(block, stage, known + bind(stage.reduce, walked), spot)

        values = [element(b, [r, t]) for b in terms]
        return sequence(
            [
                store_all(terms, [r, t], stage.init),
                nest(stage.reduce, term),
                block.store(stage, block.pairs(stage, known, r), spot, values),
            ]
        )

    return _items(block, inner, t, at)


def _items(
    block: Block, axes: Sequence[Axis], t: ir.Expr, at: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
) -> tirx.Stmt:
    """Walk some axes, element by element, ``at(flat position, item)``."""
    if not axes:
        return at(integer(0), integer(0))
    threads = block.geometry.threads
    extent = volume(axes)
    count = items_of(axes, threads)

    def item(number: ir.Expr) -> tirx.Stmt:
        flat = number * threads + t
        body = at(flat, number)
        whole = count is not None and count * threads == int(extent)
        return body if whole else tirx.IfThenElse(flat < extent, body, None)

    if count is None:
        number = sym.Analyzer().simplify(tirx.floordiv(extent + (threads - 1), integer(threads)))
        return loop("item", number, item)
    unrolled = tirx.ForKind.UNROLLED if count <= MAX_UNROLLED else tirx.ForKind.SERIAL
    return loop("item", count, item, unrolled)


def _element(block: Block, stage: Stage, at: Pairs, spot: Spot) -> tirx.Stmt:
    """One element of a map, or one term of a reduction."""
    pairs = block.pairs(stage, at, spot.r)
    values = [block.value(stage, value, pairs, spot) for value in stage.values]
    if stage.combine is None:
        return block.store(stage, pairs, spot, values)
    terms = block.terms(stage)
    mine = [spot.r, spot.t]
    return assign(terms, mine, stage.combine([element(b, mine) for b in terms], values))


def _starting(block: Block, stage: Stage):
    return lambda r, t: store_all(block.terms(stage), [r, t], stage.init)


def _publishing(block: Block, stage: Stage):
    """Store a reduction's results that leave the kernel."""

    def body(r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        values = [element(result, [r]) for result in block.results(stage)]
        spot = Spot(r, t, integer(0))
        return block.store(stage, block.pairs(stage, [], r), spot, values)

    return body


def _combine(block: Block, stage: Stage) -> tirx.Stmt:
    """Combine the threads' terms: a block that TVM lowers to shuffles or a tree."""
    geometry = block.geometry
    results, terms = block.results(stage), block.terms(stage)
    if geometry.threads == 1 or stage.combine is None:
        return geometry.every(
            lambda r, t: store_all(results, [r], [element(b, [r, t]) for b in terms])
        )
    row, thread = (tirx.Var(name, "int64") for name in ("vr", "vt"))
    update = stage.combine(
        [element(b, [row]) for b in results], [element(b, [row, thread]) for b in terms]
    )
    reduction = s_tir.SBlock(
        [
            tirx.IterVar(_range(geometry.rows), row, tirx.IterVar.DataPar),
            tirx.IterVar(_range(geometry.threads), thread, tirx.IterVar.CommReduce),
        ],
        [_point(b, row, thread) for b in terms],
        [_point(b, row) for b in results],
        stage.name,
        assign(results, [row], update),
        init=store_all(results, [row], stage.init),
    )
    return geometry.every(
        lambda r, t: s_tir.SBlockRealize([r, t], tirx.IntImm("bool", 1), reduction)
    )


def _order(block: Block, axes: Sequence[Axis]) -> list[int]:
    """Order of axes in which threads take elements: the same in all walks over such axes."""
    alike = [
        (stage, own)
        for stage in block.program.stages
        for own in [stage.inner if stage.inner and stage.reduce else stage.domain]
        if equal_axes(own, axes)
    ]
    return vector_axes([stage for stage, _ in alike], [own for _, own in alike])[0]


def _point(buffer: ir.Var, *indices: ir.Expr) -> tirx.BufferRegion:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(i, 1) for i in indices])


def _range(extent: int) -> ir.Range:
    return ir.Range(integer(0), integer(extent))
