"""Walks whose vectors are those of memory, which rows begin and end in the middle of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tvm import ir, sym, tirx

from ..expressions import row_major_offset
from .emit import Pairs, bind, integer, loop, product, replace
from .stages import Axis, Stage
from .vector_walk import UNROLLED, Read, VectorWalk
from .vectors import is_streamed


class CoveringWalk(VectorWalk):
    """Takes the vectors that cover a row.

    What is whole is one access, elements outside the row are neither counted nor written, and
    nothing outside a buffer is read: a vector in which the last row ends is read element by element
    instead. Elements outside are computed like the nearest one inside. Conditions that do not hold
    at a row's ends only vanish once the walk is unrolled.
    """

    @cached_property
    def _begin(self) -> ir.Expr:
        """Where the row begins in memory, up to whole vectors."""
        origin = self.block.order(self.stages[0].domain).origin
        if origin is None:
            raise ValueError(f"rows of {self.stages[0].name} begin at whole vectors")
        position = replace(origin.position, self.block.pairs(origin.stage, [], self.r), _same)
        return sym.Analyzer().simplify(position)

    @cached_property
    def _size(self) -> ir.Expr:
        return integer(self.stages[0].domain[0].extent)

    def _is_in_vectors(self, stage: Stage, load: ir.TensorLoad, axis: Axis) -> bool:
        # What rows share lies elsewhere in a vector, another place for each row.
        return is_streamed(load, stage.rows) and super()._is_in_vectors(stage, load, axis)

    def _exists(self, step: ir.Expr) -> ir.Expr:
        return self._first(step) < self._size

    def _terms(
        self, stage: Stage, values: Sequence[ir.Expr], step: ir.Expr, lane: ir.Expr
    ) -> list[ir.Expr]:
        is_inside = self._is_inside(step, lane)
        return [tirx.Select(is_inside, v, i) for v, i in zip(values, stage.init, strict=True)]

    def _copy(self, read: Read, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        whole = super()._copy(read, number, step)
        buffer, stage = read.load.source, read.stage
        size = product(buffer.shape)
        if sym.Analyzer().can_prove_equal(tirx.floormod(size, integer(self.width)), 0):
            return whole
        first = replace(read.load, self._side(stage, step, integer(0)), _same)
        end = row_major_offset(buffer, first.indices) + self.width

        def one(lane: ir.Expr) -> tirx.Stmt:
            value = replace(read.load, self._element(stage, step, lane), _same)
            return tirx.BufferStore(read.registers, value, self._slot(read, number, step, lane))

        is_in_memory = tirx.Or(self._first(step) + self.width <= self._size, end <= size)
        return tirx.IfThenElse(is_in_memory, whole, loop("lane", self.width, one, UNROLLED))

    def _write(self, target: ir.Var, own: ir.Var, step: ir.Expr) -> tirx.Stmt:
        first = self._first(step)

        def one(lane: ir.Expr) -> tirx.Stmt:
            store = self._store(target, own, step, lane)
            return tirx.IfThenElse(self._is_inside(step, lane), store, None)

        ends = self.block.once(loop("lane", self.width, one, UNROLLED), self.r)
        is_whole = tirx.And(first >= 0, first + self.width <= self._size)
        return tirx.IfThenElse(is_whole, super()._write(target, own, step), ends)

    def _element(self, stage: Stage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        inside = tirx.min(tirx.max(self._first(step) + lane, integer(0)), self._size - 1)
        return self.block.pairs(stage, bind(self._axes(stage), [inside]), self.r)

    def _side(self, stage: Stage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        # The vector's number first: so it is plain that the access is aligned.
        number = tirx.floordiv(self._begin, integer(self.width)) + self._number(step)
        at = number * self.width + lane - self._begin
        return self.block.pairs(stage, bind(self._axes(stage), [at]), self.r)

    def _is_inside(self, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        at = self._first(step) + lane
        return tirx.And(at >= 0, at < self._size)

    def _first(self, step: ir.Expr) -> ir.Expr:
        """Position in the row of a vector's first element; less than 0 before the row."""
        before = tirx.floormod(self._begin, integer(self.width))
        return self._number(step) * self.width - before

    def _number(self, step: ir.Expr) -> ir.Expr:
        return step * self.block.geometry.threads + self.t


def _same(load: ir.TensorLoad) -> ir.Expr:
    return load
