"""Vectorized loops over unaligned rows: aligned vectors, masked at both ends of a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tvm import ir, sym, tirx

from ....core.tir.loops import index, loop, product
from ....program.stage import Axis
from ...gpu.launch import VECTOR_TYPES
from ...index.address import offset
from ..program.emit import Pairs, bind, replace
from ..program.row_program import RowStage
from .row_vectors import RowVectorLoad
from .thread_block import ThreadBlock
from .unaligned import RowOrigin
from .vector_loop import UNROLLED, VectorLoop
from .vectorize import is_streamed


class UnalignedLoop(VectorLoop):
    """Loop over the aligned vectors that cover a row.

    Full vectors are one access; masked lanes of the head and tail vectors are neither reduced nor
    stored. Nothing outside a buffer is loaded: a vector that crosses its end is loaded by elements
    instead. Masked lanes compute the nearest element inside. Conditions that hold in all vectors
    but the ends vanish once the loop is unrolled.
    """

    @property
    def is_unrolled(self) -> bool:
        """Vectors of rows begin elsewhere in what rows share, unless it stays in registers."""
        return self.block.config.keeps_shared and super().is_unrolled

    @property
    def _begin(self) -> ir.Expr:
        """Position of the row in memory, modulo whole vectors."""
        return self._position(self.block.pairs(self._origin.stage, [], self.r))

    @cached_property
    def _before(self) -> ir.Expr:
        """Elements of the head vector before the row, as of all rows that a block takes in turn."""
        begin = self._begin
        if self.block.config.keeps_shared:
            begin = self._position(self.block.first_row(self._origin.stage, self.r))
        return sym.Analyzer().simplify(tirx.floormod(begin, index(self.width)))

    @property
    def _origin(self) -> RowOrigin:
        origin = self.block.vectorized(self.stages[0].loop_axes).origin
        if origin is None:
            raise ValueError(f"rows of {self.stages[0].name} are aligned")
        return origin

    def _position(self, row: Pairs) -> ir.Expr:
        return sym.Analyzer().simplify(replace(self._origin.position, row))

    @cached_property
    def _size(self) -> ir.Expr:
        return index(self.stages[0].loop_axes[0].extent)

    def _is_in_vectors(self, stage: RowStage, load: ir.TensorLoad, axis: Axis) -> bool:
        # What rows share has another offset in a vector for each row, but for those of a block.
        is_alike = is_streamed(load, stage.rows) or self.block.config.keeps_shared
        return is_alike and super()._is_in_vectors(stage, load, axis)

    def _exists(self, step: ir.Expr) -> ir.Expr:
        return self._first(step) < self._size

    def _is_term(self, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        return self._is_inside(step, lane)

    def _copy(self, read: RowVectorLoad, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        if not read.is_streamed:
            return self._by_elements(read, number, step)
        whole = super()._copy(read, number, step)
        buffer, stage = read.load.source, read.stage
        size = product(buffer.shape)
        if sym.Analyzer().can_prove_equal(tirx.floormod(size, index(self.width)), 0):
            return whole
        first = self._placed(read, self._contiguous(stage, step, index(0)), step, index(0))
        end = offset(buffer, first.indices) + self.width
        is_in_memory = tirx.Or(self._first(step) + self.width <= self._size, end <= size)
        return tirx.IfThenElse(is_in_memory, whole, self._by_elements(read, number, step))

    def _write(self, target: ir.Var, own: ir.Var, step: ir.Expr) -> tirx.Stmt:
        first = self._first(step)

        def one(lane: ir.Expr) -> tirx.Stmt:
            store = self._store(target, own, step, lane)
            return tirx.IfThenElse(self._is_inside(step, lane), store, None)

        ends = self.block.once(loop("lane", self.width, one, UNROLLED), self.r)
        is_whole = tirx.And(first >= 0, first + self.width <= self._size)
        return tirx.IfThenElse(is_whole, super()._write(target, own, step), ends)

    def _element(self, stage: RowStage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        inside = tirx.min(tirx.max(self._first(step) + lane, index(0)), self._size - 1)
        return self.block.pairs(stage, bind(self._axes(stage), [inside]), self.r)

    def _contiguous(self, stage: RowStage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        # In terms of the vector's number, so that TVM can prove the access aligned.
        number = tirx.floordiv(self._begin, index(self.width)) + self._number(step)
        at = number * self.width + lane - self._begin
        return self.block.pairs(stage, bind(self._axes(stage), [at]), self.r)

    def _is_inside(self, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        at = self._first(step) + lane
        return tirx.And(at >= 0, at < self._size)

    def _first(self, step: ir.Expr) -> ir.Expr:
        """Position in the row of a vector's first element; negative in the head vector."""
        return self._number(step) * self.width - self._before


# Vectorized loops whose last step is computed by all threads of a row, and masked.
#
# load: vector min(number, last) # no branch: issued with the loads of all other steps reduce: terms
# of threads without a vector are neutral store: if number <= last
class MaskedTailLoop(VectorLoop):
    """Loop over aligned vectors; threads that have none left compute the last one of the row.

    A branch around the last step keeps its loads from those of the others: what rows share, such as
    the scale of a norm, then arrives a second time late. Conditions of the other steps vanish once
    the loop is unrolled.
    """

    def _guard(self, step: ir.Expr) -> ir.Expr | None:
        return None

    def _number(self, step: ir.Expr) -> ir.Expr:
        number = super()._number(step)
        return tirx.Select(self._is_full(step), number, tirx.min(number, index(self.vectors - 1)))

    def _is_term(self, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        return self._has_vector(step)

    def _write(self, target: ir.Var, own: ir.Var, step: ir.Expr) -> tirx.Stmt:
        return tirx.IfThenElse(self._has_vector(step), super()._write(target, own, step), None)

    def _has_vector(self, step: ir.Expr) -> ir.Expr:
        return tirx.Or(self._is_full(step), super()._number(step) < self.vectors)

    def _is_full(self, step: ir.Expr) -> ir.Expr:
        """Whether all threads have a vector in a step: known once the loop is unrolled."""
        return step < self.vectors // self.block.config.threads


def can_mask_tail(block: ThreadBlock, stages: Sequence[RowStage]) -> bool:
    """Whether all that a loop writes to memory is in vectors, so that stores can be masked."""
    vectors = block.vectorized(stages[0].loop_axes)
    return vectors.width > 1 and all(
        block.program.is_internal(target) or str(target.dtype) in VECTOR_TYPES
        for stage in stages
        for target in stage.targets
    )
