"""Attention: two products with softmax between, in all forms that exporters write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tvm import relax

from ....frontend.tensor_types import HALF, dtype_of
from ..matching.extents import extent, known_shape
from ..matching.view import View
from ..pattern import Match, Mismatch, Pattern, Writer
from .indices import Axis, Indices, move, place
from .mask import Mask, read_mask, simplified
from .reading import Reading, read
from .scores import Step, Weights, lowest, read_scores, read_weights

_GUARDED = {"dead": "dead rows", "nan": "dead rows and for NaN"}


class Attention(Pattern):
    """``softmax(scale * q @ k' + mask) @ v = attention(q, k, v)``.

    Relax has an operator for it, which knows neither guards nor masks by position and becomes the
    same products again. So attention is written in one way, whatever the form was: the scale,
    one number, on the queries; every movement on the operands; masks as small as they are, causal
    ones as comparisons of positions; queries of all heads that share keys in one product, instead
    of repeated keys.
    """

    name = "attention"
    roots = frozenset({"matmul"})
    anchors = frozenset({"nn.softmax"})
    template = "attention"

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find softmax behind one operand of a product, and a product behind softmax."""
        call = view.value(root)
        for side in (0, 1):
            weights = read_weights(view, call.args[side])
            if weights is None:
                continue
            scores = read_scores(view, weights.scores)
            if scores is None:
                return None
            product, steps = scores
            reader = AttentionReader(view, root, side, weights, product, steps)
            found = reader.read()
            if isinstance(found, str):
                return Mismatch(root, found)
            if found is None:
                return None
            parts = found.build_parts if found.has_half_values else None
            return Match(found.leaves, found.build, str(found), parts)
        return None


# Match attention from its two products by the einsum index of every axis.
class AttentionReader:
    """Tracks the indices along every axis."""

    def __init__(
        self,
        view: View,
        root: relax.Var,
        side: int,
        weights: Weights,
        product: relax.Var,
        steps: Sequence[Step],
    ) -> None:
        self._view = view
        self._root = root
        self._side = side
        self._weights = weights
        self._product = product
        self._steps = steps
        self._indices = Indices()

    def read(self) -> AttentionForm | str | None:
        """Read both products and what is between; a reason where it is no attention."""
        view, indices, last = self._view, self._indices, self._view.value(self._root)
        first = view.value(self._product)
        left, right = (read(view, a, indices, True, True) for a in first.args)
        values = read(view, last.args[1 - self._side], indices, is_rounded=True)
        if left is None or right is None or values is None:
            return None
        axes = self._multiply(left.axes, right.axes)
        if axes is None:
            return None
        depth, sides = left.axes[-1], (left.axes[-2], right.axes[-1])
        steps: list[tuple[Step, list[Axis]]] = []
        scale = left.factor * right.factor
        for step in self._steps:
            if step.kind == "move":
                axes = move(step.call, axes, indices)
                if axes is None:
                    return None
            elif step.kind == "scale" and all(s.kind == "cast" for s, _ in steps):
                scale *= step.number
            else:
                steps.append((step, list(axes)))
        keys = axes[int(self._weights.softmax.attrs.axis)]
        sink = None
        if self._weights.sink is not None:
            sink = read(view, self._weights.sink, indices)
            if sink is None:
                return None
            if not all(indices.join(a, b) for a, b in zip(axes, sink.axes, strict=True) if b):
                return None
        weighed = self._weighed(axes)
        if weighed is None or min(len(weighed), len(values.axes)) < 2:
            return None
        contracted = weighed[-1 - self._side]
        if not keys or indices.resolve(contracted) != indices.resolve(keys):
            return "softmax is not over the axis that the second product reduces"
        result = self._multiply(*(weighed, values.axes)[:: -1 if self._side else 1])
        masks = [_masked(view, step, at, indices) for step, at in steps]
        if result is None or None in masks or not math.isfinite(scale):
            return None
        sides = indices.resolve(sides[0]), indices.resolve(sides[1])
        if indices.resolve(keys) not in sides:
            return "softmax is not over the keys"
        if self._weights.scaled:
            return "softmax is scaled before the product with the values"
        place_of_keys = sides.index(indices.resolve(keys))
        k, q = (left, right) if place_of_keys == 0 else (right, left)
        heads = [i for a in axes for i in indices.resolve(a) if i not in sides[0] + sides[1]]
        rows, keys = sides[1 - place_of_keys], sides[place_of_keys]
        columns = values.axes[-2 if self._side else -1]
        depth, columns = indices.resolve(depth), indices.resolve(columns)
        own = [{i for a in r.own for i in indices.resolve(a)} for r in (q, k, values)]
        wanted = [(*rows, *depth), (*keys, *depth), (*keys, *columns)]
        for have, needs in zip(own, wanted, strict=True):
            if not have.issuperset(needs) or not have.issubset([*heads, *needs]):
                return None
        groups = [i for i in heads if i not in own[1] | own[2]]
        if heads[len(heads) - len(groups) :] != groups:
            groups = []  # heads that share keys are not neighbours
        found = [
            (s, simplified(view, m, s, rows, keys, indices) if isinstance(m, Mask) else None)
            for (s, _), m in zip(steps, masks, strict=True)
        ]
        return AttentionForm(
            root=self._root,
            indices=indices,
            q=q,
            k=k,
            v=values,
            batch=tuple(i for i in heads if i not in groups),
            groups=tuple(groups),
            rows=rows,
            keys=keys,
            depth=depth,
            columns=columns,
            scale=scale,
            steps=tuple(found),
            weights=self._weights,
            result=tuple(result),
            sink=sink,
            products=(first, last),
        )

    def _weighed(self, axes: Sequence[Axis]) -> Sequence[Axis] | None:
        """Follow indices from softmax to the second product."""
        for step in self._weights.steps:
            if step.kind == "move":
                moved = move(step.call, axes, self._indices)
                if moved is None:
                    return None
                axes = moved
        return axes

    def _multiply(self, left: Sequence[Axis], right: Sequence[Axis]) -> list[Axis] | None:
        """Compute the indices of a product's result."""
        if min(len(left), len(right)) < 2 or not self._indices.join(left[-1], right[-2]):
            return None
        batch: list[Axis] = []
        for one, other in zip_longest(left[-3::-1], right[-3::-1], fillvalue=()):
            if one and other and not self._indices.join(one, other):
                return None
            batch.append(one or other)
        return [*batch[::-1], left[-2], right[-1]]


def _masked(view: View, step: Step, axes: Sequence[Axis], indices: Indices) -> Mask | bool | None:
    """Read the mask of a step; True for a cast, which has none."""
    return True if step.kind == "cast" else read_mask(view, step, axes, indices)


# The one form that attention is written in: its operands, indices, scale and masks.
@dataclass(frozen=True)
class AttentionForm:
    """Attention over indices."""

    root: relax.Var
    indices: Indices
    # The operands.
    q: Reading
    k: Reading
    v: Reading
    # Indices of heads and batches; of heads that share keys; of queries, keys, their elements, and
    # the values' elements.
    batch: Axis
    groups: Axis
    rows: Axis
    keys: Axis
    depth: Axis
    columns: Axis
    scale: float  # of the scores
    steps: tuple[tuple[Step, Mask | None], ...]  # on the scores, without movements
    weights: Weights
    result: tuple[Axis, ...]
    sink: Reading | None  # a score beside those of the keys
    products: tuple[relax.Call, relax.Call]  # both, as they were

    @property
    def leaves(self) -> tuple[Any, ...]:
        """What is read: queries, keys, values, the masks that are tensors, and the sink."""
        rest = [m.source for _, m in self.steps if m is not None and m.source is not None]
        rest += [] if self.sink is None else [self.sink.source]
        return (self.q.source, self.k.source, self.v.source, *rest)

    def __str__(self) -> str:
        """Describe it for a record."""
        masks = [m.describe(s) for s, m in self.steps if m is not None]
        is_causal = any(m is not None and m.is_causal for _, m in self.steps)
        q, k, v = (getattr(r.source, "name", "constant") for r in (self.q, self.k, self.v))
        guard = "" if self.weights.guard is None else f", 0 in {_GUARDED[self.weights.guard]}"
        guard += "" if self.sink is None else ", with an attention sink"
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
        if self.sink is None:
            weights = write.emit(relax.op.nn.softmax(scores, -1))
        else:
            weights = self._beside_sink(write, scores, self.sink.start(write, next(given)))
        if self.weights.guard is not None:
            is_masked = (
                relax.op.isnan(weights)
                if self.weights.guard == "nan"
                else relax.op.less(scores, relax.const(lowest(scores), dtype_of(scores)))
            )
            zero = relax.const(0.0, dtype_of(weights))
            weights = write.emit(relax.op.where(write.emit(is_masked), zero, weights))
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

    def _beside_sink(self, write: Writer, scores: Any, sink: Any) -> Any:
        """Write the weights of the keys beside a sink."""
        assert self.sink is not None
        *heads, keys = known_shape(scores) or []
        layout = [*((i,) for i in self.batch), self.groups + self.rows, ()]
        sink = write.cast(place(write, sink, self.sink.own, layout, self.indices), dtype_of(scores))
        column = write.broadcast(sink, [*heads, 1])
        shares = write.emit(
            relax.op.nn.softmax(write.emit(relax.op.concat([scores, column], -1)), -1)
        )
        return write.emit(relax.op.strided_slice(shares, [len(heads)], [0], [keys]))

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
