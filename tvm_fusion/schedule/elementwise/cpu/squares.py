"""Transposed loads of maps on a CPU: squares in vector registers, transposed by shuffles.

for square of a tile:                            rows along one axis, columns along the last one
    square[column] = x[rows, column]             vectors along the rows: x is contiguous there
    turned = transpose(square)                   (cpu/transpose)
    for row: y[row, columns] = f(turned[row])

Element by element, LLVM inserts each into a vector: an image of 128 x 32 x 32 in blocks of 16
channels, next to one of 64 x 32 x 32 that is copied, took 75 us on a Zen 5 core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tvm import DataType, ir, sym, tirx

from ....core.tir.expressions import choice, has_load, load, loads, variables
from ....core.tir.loops import (
    block,
    constant,
    find,
    index,
    local,
    loop,
    sequence,
    substitute,
    vectorized,
)
from ....program.domain import Domain
from ....program.lane_conditions import decide_for_lanes
from ....program.stage import Axis
from ...cpu.transpose import adjacent, transposed
from ...cpu.vector_loops import by_vectors
from ...index.address import conditional_loads, offset, same, stride
from ..iteration_space import IterationSpace, Store

BITS = 32  # of an element that shuffles move
MOST = 2  # transposed loads of a value

Places = Mapping[ir.Var, ir.Expr]


def with_block_axes(space: IterationSpace, side: int) -> IterationSpace:
    """Split an axis of channels that a load has in blocks, where squares of these fit.

    ``x[c // 16, p, c % 16]`` over ``c, p`` becomes ``x[b, p, lane]`` over ``b, lane, p``.
    """
    for number, axis in enumerate(space.axes[:-1]):
        divisions = [m for s in space.stores for x in loads(s.value) for m in _blocks(x, axis.var)]
        sizes = {int(m.b) for m in divisions}
        extent = constant(axis.extent)
        if len(sizes) != 1 or extent is None or extent % (size := sizes.pop()):
            continue
        outer, inner = (tirx.Var(f"{axis.var.name}_{n}", "int64") for n in ("block", "lane"))
        both = Axis(outer, index(extent // size)), Axis(inner, index(size))
        axes = (*space.axes[:number], *both, *space.axes[number + 1 :])
        domain, places = Domain(axes), {axis.var: outer * size + inner}
        analyzer = sym.Analyzer()
        for one in axes:
            analyzer.bind(one.var, ir.Range.from_min_extent(index(0), index(one.extent)))
        stores = tuple(
            Store(
                s.buffer,
                tuple(map(domain.simplify, s.indices)),
                domain.simplify(decide_for_lanes(s.value, both[1:], analyzer)),
            )
            for s in (store.moved(places) for store in space.stores)
        )
        split = replace(space, axes=axes, stores=stores)
        if squares_of(split, side) is not None:
            return split
    return space


def squares_of(space: IterationSpace, side: int) -> Squares | None:
    """Return the squares of a space; ``None`` where they do not fit."""
    tiled = space.transposed_axis(side)
    found = None if tiled is None else Squares(space, tiled, side)
    return found if found is not None and found.fits else None


def _blocks(found: ir.TensorLoad, axis: ir.Var) -> list[ir.Expr]:
    """List the remainders of an axis by constants in the indices of a load."""
    return [
        m
        for i in found.indices
        for m in find(i, tirx.FloorMod)
        if isinstance(m.a, ir.Var) and m.a.same_as(axis) and constant(m.b) is not None
    ]


class Squares:
    """Squares of a space with a transposed load.

    Parameters
    ----------
    tiled
        The axis along which the load is contiguous.
    side
        Rows and columns of a square.

    Attributes
    ----------
    fits : bool
        Whether all points are in whole squares, which the one value allows.
    """

    def __init__(self, space: IterationSpace, tiled: int, side: int) -> None:
        self._space, self.tiled, self.side = space, tiled, side
        self._row, self._column = space.variables[tiled], space.variables[-1]
        rows, columns = (constant(space.axes[n].extent) for n in (tiled, -1))
        self.fits = (
            side > 1
            and not (rows is None or rows % side or columns is None or columns % side)
            and len(space.stores) == 1
            and self._can_turn(space.stores[0].value)
        )

    def band(self, places: Places, rows: ir.Expr, columns: int, widest: int) -> tirx.Stmt:
        """Compute whole squares of rows, from the first one on; what is not transposed by rows.

        Parameters
        ----------
        places : Mapping of Var to PrimExpr
            The first point of the first row.
        widest
            Elements of the widest vector.
        """
        (store,) = self._space.stores
        return self._cases(store, store.value, (places, rows, columns, widest))

    def _cases(
        self, store: Store, value: ir.Expr, band: tuple[Places, ir.Expr, int, int]
    ) -> tirx.Stmt:
        chosen = choice(value)
        if chosen is not None and self._is_shared(chosen[0]):
            where = replace(store, value=chosen[0]).moved(band[0]).value
            return tirx.IfThenElse(where, *(self._cases(store, v, band) for v in chosen[1:]))
        leaf, (places, rows, columns, widest) = replace(store, value=value), band
        if not self._turned(value):

            def vector(row: ir.Expr, first: ir.Expr, width: int) -> tirx.Stmt:
                return vectorized(
                    width, lambda lane: leaf.at(self._moved(places, row, first + lane))
                )

            return loop("row", rows, lambda row: by_vectors(columns, widest, partial(vector, row)))
        side = index(self.side)
        return loop(
            "square",
            columns // self.side,
            lambda column: loop(
                "rows",
                tirx.floordiv(rows, side),
                lambda row: self._square(leaf, self._moved(places, row * side, column * side)),
            ),
        )

    def _square(self, store: Store, places: Places) -> tirx.Stmt:
        side, found = self.side, self._turned(store.value)
        turned = [local("turned", [side, side], str(x.source.ty.dtype)) for x in found]

        def row(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                held = [(x, load(b, [number, lane])) for x, b in zip(found, turned, strict=True)]
                return store.reading(held).at(self._moved(places, number, lane))

            return vectorized(side, element)

        stmts = [self._turn(x, buffer, places) for x, buffer in zip(found, turned, strict=True)]
        rows = loop("row", side, row, tirx.ForKind.UNROLLED)
        return block("square", sequence([*stmts, rows]), turned)

    def _turn(self, found: ir.TensorLoad, turned: ir.Var, places: Places) -> tirx.Stmt:
        """Load the columns of a square, and store its rows."""
        side = self.side
        square = local("square", [side, side], str(found.source.ty.dtype))

        def column(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                value = substitute(found, self._moved(places, lane, number))
                return tirx.BufferStore(square, value, [number, lane])

            return vectorized(side, element)

        columns = [load(square, [index(i), adjacent(0, side)]) for i in range(side)]
        stmts = [
            loop("column", side, column, tirx.ForKind.UNROLLED),
            transposed(
                columns,
                lambda i, row: tirx.BufferStore(turned, row, [index(i), adjacent(0, side)]),
            ),
        ]
        return block("turn", sequence(stmts), [square])

    def _moved(self, places: Places, row: ir.Expr, column: ir.Expr) -> Places:
        moved = {self._row: places[self._row] + row, self._column: places[self._column] + column}
        return {**places, **moved}

    def _can_turn(self, value: ir.Expr) -> bool:
        """Whether the leaves of a value read what is transposed unconditionally."""
        chosen = choice(value)
        if chosen is not None and self._is_shared(chosen[0]):
            return all(map(self._can_turn, chosen[1:]))
        found = self._turned(value)
        return (
            len(found) <= MOST
            and all(DataType(str(x.source.ty.dtype)).bits == BITS for x in found)
            and not any(has_load(i) for x in loads(value) for i in x.indices)
            and not conditional_loads(value)
        )

    def _is_shared(self, condition: ir.Expr) -> bool:
        """Whether a condition is the same throughout a square."""
        used = variables(condition)
        return not has_load(condition) and self._row not in used and self._column not in used

    def _turned(self, value: ir.Expr) -> list[ir.TensorLoad]:
        """List the loads that are contiguous along rows and not along columns, each once."""
        found: list[ir.TensorLoad] = []
        for one in loads(value):
            place = offset(one.source, one.indices)
            along = [stride(place, v, self._space.variables) for v in (self._row, self._column)]
            rows, columns = (None if step is None else constant(step) for step in along)
            if rows == 1 and columns not in (0, 1) and not any(same(one, x) for x in found):
                found.append(one)
        return found
