"""The one form that attention is written in: its operands, indices, scale and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ...frontend.tensor_types import HALF, dtype_of
from .extents import extent, known_shape
from .indices import Axis, Indices, place
from .mask import Mask
from .pattern import Writer
from .reading import Reading
from .scores import Step, Weights


@dataclass(frozen=True)
class AttentionForm:
    """Attention over indices.

    Attributes
    ----------
    indices : Indices
        All of them.
    q, k, v : Reading
        The operands.
    batch, groups, rows, keys, depth, columns : Axis
        Indices of heads and batches; of heads that share keys; of queries, keys, their elements,
        and the values' elements.
    scale : float
        Of the scores.
    steps : tuple of (Step, Mask or None)
        On the scores, without movements.
    products : tuple of relax.Call
        Both, as they were.
    """

    root: relax.Var
    indices: Indices
    q: Reading
    k: Reading
    v: Reading
    batch: Axis
    groups: Axis
    rows: Axis
    keys: Axis
    depth: Axis
    columns: Axis
    scale: float
    steps: tuple[tuple[Step, Mask | None], ...]
    weights: Weights
    result: tuple[Axis, ...]
    products: tuple[relax.Call, relax.Call]

    @property
    def leaves(self) -> tuple[Any, ...]:
        """What is read: queries, keys, values, and the masks that are tensors."""
        masks = [m.source for _, m in self.steps if m is not None and m.source is not None]
        return (self.q.source, self.k.source, self.v.source, *masks)

    def __str__(self) -> str:
        """Describe it for a record."""
        masks = [m.describe(s) for s, m in self.steps if m is not None]
        is_causal = any(m is not None and m.is_causal for _, m in self.steps)
        q, k, v = (getattr(r.source, "name", "constant") for r in (self.q, self.k, self.v))
        guard = "" if self.weights.guard is None else f", {self.weights.guard:g} in dead rows"
        return (
            f"q {q}, k {k}, v {v}, scale {self.scale:g}, mask {' and '.join(masks) or 'none'},"
            f" {'causal' if is_causal else 'not causal'},"
            f" {_plain(self.indices.size(self.groups))} heads to one of keys{guard}"
        )

    @property
    def has_half_values(self) -> bool:
        """Whether values are of a half type, maybe widened before they are multiplied."""
        return self.v.dtype in HALF

    def build(self, write: Writer, q: Any, k: Any, v: Any, *masks: Any) -> Any:
        """Write it as the template wants it."""
        return self._build(write, q, k, v, masks, in_parts=False)

    def build_parts(self, write: Writer, q: Any, k: Any, v: Any, *masks: Any) -> Any:
        """Write it as two products and a softmax of their own.

        Weights are rounded to the half type of the values, as in attention's kernels: exporters
        that widen values multiply in float32, as three products on tensor cores. One head of 512
        elements over 4,096 tokens took 1.29 ms so on an H200.
        """
        return self._build(write, q, k, v, masks, in_parts=True)

    def _build(
        self, write: Writer, q: Any, k: Any, v: Any, masks: Sequence[Any], in_parts: bool
    ) -> Any:
        indices, heads = self.indices, [(i,) for i in self.batch]
        rows = self.groups + self.rows
        starts = (r.start(write, x) for r, x in ((self.q, q), (self.k, k), (self.v, v)))
        q, k, v = starts
        left = place(write, q, self.q.own, [*heads, rows, self.depth], indices)
        right = place(write, k, self.k.own, [*heads, self.depth, self.keys], indices)
        values = place(write, v, self.v.own, [*heads, self.keys, self.columns], indices)
        scores = self._scores(write, left, right)
        given = iter(masks)
        for step, mask in self.steps:
            if mask is None:
                scores = write.cast(scores, dtype_of(step.call))
                continue
            other = next(given) if mask.source is not None else None
            scores = mask.apply(write, step, scores, other, [*heads, rows, self.keys], indices)
        weights = write.emit(relax.op.nn.softmax(scores, -1))
        if self.weights.guard is not None:
            instead = relax.const(self.weights.guard, dtype_of(weights))
            is_dead = write.emit(relax.op.isnan(weights))
            weights = write.emit(relax.op.where(is_dead, instead, weights))
        for step in self.weights.steps:
            if step.kind == "cast":
                weights = write.cast(weights, dtype_of(step.call))
        if in_parts and dtype_of(values) in HALF:
            weights = write.cast(weights, dtype_of(values))
        values = write.cast(values, dtype_of(weights))
        found = _multiply(write, weights, values, self.products[1])
        own = [*heads, rows, self.columns]
        moved = place(write, found, own, [indices.resolve(a) for a in self.result], indices)
        return write.reshape(moved, known_shape(self.root) or [])

    def _scores(self, write: Writer, left: Any, right: Any) -> Any:
        """Write the scaled product of queries and keys, of its type.

        Of half operands, the product is scaled in float32: there is no overflow, and no rounding.
        """
        if dtype_of(left) != dtype_of(right):
            left, right = (write.cast(x, "float32") for x in (left, right))
        is_half = dtype_of(left) in HALF
        is_first = abs(self.scale) <= 1 and not is_half  # larger queries may overflow
        if is_first:
            left = write.scale(left, self.scale)
        if is_half and self.scale != 1:
            scores = write.emit(relax.op.matmul(left, right, "float32"))
        else:
            scores = _multiply(write, left, right, self.products[0])
        if not is_first:
            scores = write.scale(scores, self.scale)
        return write.cast(scores, dtype_of(self.products[0]))


def _multiply(write: Writer, left: Any, right: Any, before: relax.Call) -> Any:
    """Write a product of the type that it had over other operands."""
    is_same = dtype_of(left) == dtype_of(before.args[0])
    dtype = before.attrs.out_dtype if is_same else dtype_of(before)
    return write.emit(relax.op.matmul(left, right, dtype or None))


def _plain(size: Any) -> Any:
    known = extent(size)
    return size if known is None else known
