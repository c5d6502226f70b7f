"""Softmax, with or without the maximum that keeps the exponentials small."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...core.flags import REASSOCIATE
from ...frontend.tensor_types import dtype_of
from .extents import known_shape, same_shape
from .match import X, anchored, atom, is_itself, is_same, kept, over, reduced, reductions, terms
from .pattern import Match, Mismatch, Pattern, Writer
from .view import View

_S, _M = atom("sum"), atom("max")


class Softmax(Pattern):
    """``exp(x - max(x)) / sum(exp(x - max(x)), axis) = softmax(x, axis)``.

    So is ``exp(u) / sum(exp(u), axis)`` of any ``u``, but where the sum overflows and the quotients
    are 0: that takes the flag ``reassociate``. What is done about rows without a finite
    element stays outside, as written.
    """

    name = "softmax"
    roots = frozenset({"divide", "multiply"})
    anchors = frozenset({"exp"})

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find ``exp(u)`` over its own sum."""
        found = exponentials(view, root)
        if not isinstance(found, tuple):
            return found
        e, axis = found
        source, factor, is_shifted = shifted(view, e, axis)

        def build(write: Writer, x: Any) -> Any:
            x = write.scale(write.cast(x, dtype_of(e)), factor)
            return write.like(write.emit(relax.op.nn.softmax(x, axis)), root)

        return Match((source,), build, needs="" if is_shifted else REASSOCIATE)


def exponentials(view: View, root: Any) -> tuple[Any, int] | Mismatch | None:
    """Find ``e`` and the axis in ``e / sum(e, axis)``, where ``e`` is an exponential."""
    for e in anchored(view, root, "exp"):
        for total, reduction in reductions(view, root, "sum"):
            if not is_itself(view, reduction.source, e):
                return Mismatch(e, "the divisor is not the sum of exponentials")
            if len(reduction.axes) != 1:
                return Mismatch(e, "the sum is over several axes")
            found = over(view, root, e, {"sum": (total, kept(reduction))})
            if not is_same(found, terms((1, {X: 1, _S: -1}))):
                return Mismatch(e, "the exponential is not divided by its sum along the same axis")
            return e, reduction.axes[0]
    return None


def shifted(view: View, e: Any, axis: int) -> tuple[Any, float, bool]:
    """Find ``x`` and ``c`` in ``exp(c * x - c * max(x, axis))``; else the argument, and 1.

    Also says which of them was found. A ``c`` above 1 is no factor: ``c * x`` may overflow.
    """
    argument = view.value(e).args[0]
    for _, reduction in reductions(view, argument, "max"):
        x = reduction.source
        if reduction.axes != (axis,) or not same_shape(known_shape(x) or [], known_shape(e) or []):
            continue
        largest = reduced(view, "max", x, reduction.axes)
        found = over(view, argument, x, {"max": (largest, kept(reduction))})
        factor = (found or {}).get(next(iter(terms((1, {X: 1})))), 0.0)
        if factor > 0 and is_same(found, terms((factor, {X: 1}), (-factor, {_M: 1}))):
            return (x, factor, True) if factor <= 1 else (argument, 1.0, True)
    return argument, 1.0, False
