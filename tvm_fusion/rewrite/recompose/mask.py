"""Masks of attention: tensors before they are broadcast, and comparisons of positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from ...frontend.tensor_types import dtype_of
from .causal_mask import CausalMask, causal_mask_of
from .extents import known_shape
from .indices import Axis, Indices, place
from .pattern import Writer
from .reading import read
from .scores import Step
from .view import View

_LARGEST = 1 << 24  # elements of a constant that is looked through


@dataclass(frozen=True)
class Mask:
    """What a step combines scores with.

    Attributes
    ----------
    source : ir.Expr or None
        A tensor; None where positions say all, or nothing happens at all.
    own : tuple of Axis
        Indices along its axes.
    causal : CausalMask or None
        Positions that it lets through.
    rows, keys : Axis
        Indices of the positions.
    """

    source: Any
    own: tuple[Axis, ...]
    causal: CausalMask | None = None
    rows: Axis = ()
    keys: Axis = ()

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.causal is not None

    @property
    def is_nothing(self) -> bool:
        """Whether the step leaves all scores as they are."""
        return self.source is None and self.causal is None

    def describe(self, step: Step) -> str:
        """Name the kind of mask for a record."""
        if self.is_nothing:
            return "nothing"
        if self.causal is not None:
            return "by position"
        kind = {"add": "added", "where": "boolean"}.get(step.kind, step.kind)
        name = getattr(self.source, "name", "constant")
        return f"{kind} {name}"

    def apply(
        self,
        write: Writer,
        step: Step,
        scores: Any,
        other: Any,
        layout: Sequence[Axis],
        indices: Indices,
    ) -> Any:
        """Write the step on scores, over whose axes run the indices of ``layout``."""
        if self.is_nothing:
            return scores
        if self.causal is None:
            other = place(write, other, self.own, layout, indices)
            if step.kind == "where":
                return self._choose(write, scores, other, step.number, step.keeps)
            other = write.cast(other, dtype_of(scores))
            return write.emit(getattr(relax.op, step.kind)(scores, other))
        seen = self._seen(write, layout, indices)
        causal = self.causal
        if step.kind == "where":
            return self._choose(write, scores, seen, step.number, bool(causal.inside) == step.keeps)
        if np.isneginf(causal.outside):
            return self._choose(write, scores, seen, causal.outside, True)
        pair = (relax.const(x, dtype_of(scores)) for x in (causal.inside, causal.outside))
        added = write.emit(relax.op.where(seen, *pair))
        return write.emit(relax.op.add(scores, added))

    def _choose(
        self, write: Writer, scores: Any, condition: Any, number: float, keeps: bool
    ) -> Any:
        instead = relax.const(number, dtype_of(scores))
        pair = (scores, instead) if keeps else (instead, scores)
        return write.emit(relax.op.where(condition, *pair))

    def _seen(self, write: Writer, layout: Sequence[Axis], indices: Indices) -> Any:
        """Compare the positions of keys with those of queries."""
        offset = self.causal.offset if self.causal is not None else 0
        positions = []
        for axis in (self.keys, self.rows):
            size = indices.size(axis)
            position = write.keep(relax.op.arange(0, size, 1, "int32"))
            positions.append(place(write, position, [axis], layout, indices))
        key, query = positions
        if offset:
            query = write.keep(relax.op.add(query, relax.const(offset, "int32")))
        return write.keep(relax.op.less_equal(key, query))


def read_mask(view: View, step: Step, axes: Sequence[Axis], indices: Indices) -> Mask | None:
    """Relate a mask's axes to the indices of the scores that it is combined with."""
    reading = read(view, step.other, indices)
    if reading is None or len(reading.axes) > len(axes):
        return None
    for own, scores in zip(reversed(reading.axes), reversed(axes), strict=False):
        if own and not indices.join(scores, own):
            return None
    return Mask(reading.source, reading.own)


def simplified(
    view: View, mask: Mask, step: Step, rows: Axis, keys: Axis, indices: Indices
) -> Mask:
    """Recognise masks that say nothing, and those that positions alone decide."""
    own = [index for axis in mask.own for index in indices.resolve(axis)]
    neutral = _neutral(step)
    if neutral is not None and _is_filled(view.value(mask.source), neutral):
        return Mask(None, ())
    if len(rows) != 1 or len(keys) != 1 or sorted(own) != sorted(rows + keys):
        return mask
    order = [next((a for a, x in enumerate(mask.own) if indices.resolve(x) == i), -1)
             for i in (rows, keys)]  # fmt: skip
    found = causal_mask_of(view, mask.source, order[0], order[1]) if min(order) >= 0 else None
    if found is None or found.inside != (neutral if step.kind != "where" else found.inside):
        return mask
    if step.kind == "where" and {found.inside, found.outside} != {0.0, 1.0}:
        return mask
    return Mask(None, (), found, rows, keys) if step.kind in ("add", "where") else mask


def _neutral(step: Step) -> float | None:
    if step.kind == "where":
        return float(step.keeps)
    return {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0}.get(step.kind)


def _is_filled(value: Any, number: float) -> bool:
    if not isinstance(value, GenericConst) or not known_shape(value):
        return False
    if np.prod([int(d) for d in value.value.shape]) > _LARGEST:
        return False
    return bool((value.value.numpy() == number).all())
