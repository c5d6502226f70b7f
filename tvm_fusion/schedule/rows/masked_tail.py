"""Vectorized loops whose last step is computed by all threads of a row, and masked.

load:    vector min(number, last)            # no branch: issued with the loads of all other steps
reduce:  terms of threads without a vector are neutral
store:   if number <= last
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ...core.loops import index
from ..gpu.launch import VECTOR_TYPES
from .row_program import RowStage
from .thread_block import ThreadBlock
from .vector_loop import VectorLoop


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
