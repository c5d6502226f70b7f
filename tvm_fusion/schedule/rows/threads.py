"""Stages of the rows of a thread block, statement by statement over its threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, sym, tirx

from .block import Block, Spot
from .covering_walk import CoveringWalk
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
from .exchange import combine
from .passes import Pass
from .registers import steps_of
from .stages import Axis, Stage
from .vector_walk import VectorWalk

MAX_UNROLLED = 32  # iterations; arrays in registers need constant indices


def emit_walk(block: Block, one: Pass) -> list[tirx.Stmt]:
    """Emit one walk over the rows of a block, then what their threads combine."""
    first = one.stages[0]
    every = block.geometry.every
    if first.inner and first.reduce:
        return [every(lambda r, t: _results(block, first, r, t))]
    reductions = [stage for stage in one.stages if stage.combine is not None]
    stmts = [every(_starting(block, stage)) for stage in reductions]
    order = block.order(first.domain)
    is_ahead = order.is_ahead and (order.width > 1 or not block.geometry.rows_first)
    elements = _vectors if is_ahead else _elements
    stmts.append(every(lambda r, t: elements(block, one.stages, r, t)))
    stmts += combine(block, reductions)
    for stage in reductions:
        if not block.program.is_internal(stage.targets[0]):
            stmts.append(every(_publishing(block, stage)))
    return stmts


def _vectors(block: Block, stages: Sequence[Stage], r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
    """Take every ``threads``-th vector of a row, from the thread's own on."""
    is_aligned = block.order(stages[0].domain).origin is None
    walk = VectorWalk if is_aligned else CoveringWalk
    return walk(block, stages, r, t).whole()


def _elements(block: Block, stages: Sequence[Stage], r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
    """Take every ``threads``-th element of a row, from the thread's own on."""
    order = block.order(stages[0].domain).axes
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
    inner = [stage.inner[i] for i in block.order(stage.inner).axes]
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
    count = steps_of(axes, threads)

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
    if stage.combine_in_turn is None:
        return block.store(stage, pairs, spot, values)
    terms = block.terms(stage)
    mine = [spot.r, spot.t]
    return assign(terms, mine, stage.combine_in_turn([element(b, mine) for b in terms], values))


def _starting(block: Block, stage: Stage):
    return lambda r, t: store_all(block.terms(stage), [r, t], stage.init)


def _publishing(block: Block, stage: Stage):
    """Store a reduction's results that leave the kernel."""

    def body(r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        values = [element(result, [r]) for result in block.results(stage)]
        spot = Spot(r, t, integer(0))
        return block.store(stage, block.pairs(stage, [], r), spot, values)

    return body
