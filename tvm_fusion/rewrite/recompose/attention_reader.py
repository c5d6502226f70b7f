"""Match attention from its two products by the einsum index of every axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from tvm import relax

from .attention_form import AttentionForm
from .indices import Axis, Indices, move
from .mask import Mask, read_mask, simplified
from .reading import read
from .scores import Step, Weights
from .view import View


class AttentionReader:
    """Gives every axis its indices."""

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
        """Give the result of a product its indices."""
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
