"""The axes of the scores of an attention, and terms of other stages expressed over them.

Scores and statistics of softmax are put for variables, as a kernel keeps them in registers.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from ....core.expressions import loads
from ....core.loops import substitute
from ....core.template import Refusal
from ....program.stage import Axis, Stage
from .pattern import FLOAT


class ScoreAxes:
    """How the stages of softmax and of the second product read the scores.

    Attributes
    ----------
    raw : Var
        The product of q and k.
    row_max, row_sum : Var
        Statistics of a row of scores.
    """

    def __init__(self, scores: Stage, maximum: Stage, total: Stage) -> None:
        self._scores, self._maximum, self._total = scores, maximum, total
        dtype = str(scores.targets[0].ty.dtype)
        self.raw = tirx.Var("raw", FLOAT)
        self._product = self.raw if dtype == FLOAT else tirx.Cast(dtype, self.raw)
        self.row_max = tirx.Var("row_max", str(maximum.targets[0].ty.dtype))
        self.row_sum = tirx.Var("sum", str(total.targets[0].ty.dtype))

    def key(self) -> Axis | Refusal:
        """Give the axis of the scores that softmax reduces."""
        own = self.axes_of(self._maximum)
        along = (own or {}).get(self._maximum.reduce[0].var)
        axis = next((a for a in self._scores.axes if is_same(along, a.var)), None)
        if axis is None:
            return scores_elsewhere(self._maximum)
        return axis

    def axes_of(self, stage: Stage) -> dict[ir.Var, ir.Var] | None:
        """Map a stage's axes to the scores' axes; it must read scores at its own position."""
        target = self._scores.targets[0]
        reads = [x for v in stage.values for x in loads(v) if x.source.same_as(target)]
        if not reads:
            return None
        where = self._scores.indices[0]
        own: dict[ir.Var, ir.Var] = {}
        mine = {a.var for a in (*stage.axes, *stage.reduce)}
        for written, read in zip(where, reads[0].indices, strict=True):
            if isinstance(written, ir.Var):
                if read not in mine or read in own:
                    return None
                own[read] = written
        if len(own) != len(self._scores.axes):
            return None
        same = all(
            tvm_ffi.structural_equal(list(reads[0].indices), list(x.indices), map_free_vars=False)
            for x in reads[1:]
        )
        return own if same else None

    def express(self, stage: Stage, value: ir.Expr | None) -> ir.Expr | None:
        """Express a term over the axes of the scores; ``None`` if it reads other rows."""
        own = self.axes_of(stage)
        if value is None or own is None:
            return None
        placeholders = (
            (self._scores, self._product),
            (self._maximum, self.row_max),
            (self._total, self.row_sum),
        )
        reads_other_row = False

        def swap(load: ir.TensorLoad) -> ir.Expr:
            nonlocal reads_other_row
            for part, placeholder in placeholders:
                if load.source.same_as(part.targets[0]):
                    reads_other_row |= not self._is_own_row(part, load)
                    return placeholder
            return load

        # Indices are over the scores' axes when loads are looked at.
        found = substitute(substitute(value, own), {}, swap)
        return None if reads_other_row else found

    def _is_own_row(self, part: Stage, load: ir.TensorLoad) -> bool:
        """Whether a load over the scores' axes is of their own row."""
        if part is self._scores:
            return True  # axes_of saw to it
        own = self.axes_of(part) or {}
        return all(
            not isinstance(written, ir.Var) or is_same(own.get(written), read)
            for written, read in zip(part.indices[0], load.indices, strict=True)
        )


def is_same(one: ir.Expr | None, other: ir.Expr) -> bool:
    """Whether there is an expression, and it is the same object as another."""
    return one is not None and one.same_as(other)


def scores_elsewhere(stage: Stage) -> Refusal:
    """Refuse a stage that reads scores of other rows."""
    return Refusal(
        "scores_elsewhere",
        f"{stage.title} does not read the scores of its own row, each element once.",
    )
