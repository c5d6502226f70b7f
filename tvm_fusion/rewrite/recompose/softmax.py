"""Softmax, with or without the maximum that keeps the exponentials small."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...core.flags import REASSOCIATE
from ...frontend.tensor_types import dtype_of
from ..nonfinite import ALL, MINUS, NONE, NonFinite
from .matching.extents import known_shape, same_shape
from .matching.match import (
    Axes,
    X,
    anchored,
    atom,
    is_itself,
    is_same,
    kept,
    over,
    reduced,
    reductions,
    terms,
)
from .matching.view import View
from .pattern import Match, Mismatch, Pattern, Writer

_L = atom("log")


class LogSoftmax(Pattern):
    """``x - max(x) - log(sum(exp(x - max(x)), axis)) = log_softmax(x, axis)``.

    So are ``u - log(sum(exp(u), axis))`` of any ``u``, and ``log(softmax(x, axis))``, whose
    logarithm of a small quotient loses digits, or is infinite.
    """

    name = "log_softmax"
    roots = frozenset({"subtract", "add", "log"})
    anchors = frozenset({"log"})

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find a logarithm of a sum of exponentials, or of softmax."""
        if view.call(root, "log") is not None:
            found = self._of_quotient(view, view.value(root).args[0])
        else:
            found = self._of_difference(view, root)
        if not isinstance(found, tuple):
            return found
        source, axis, factor, dtype, changes = found

        def build(write: Writer, x: Any) -> Any:
            x = write.scale(write.cast(x, dtype), factor)
            return write.like(write.emit(relax.op.nn.log_softmax(x, axis)), root)

        return Match((source,), build, changes=changes)

    def _of_quotient(
        self, view: View, quotient: Any
    ) -> tuple[Any, int, float, str, NonFinite] | Mismatch | None:
        quotient = _uncast(view, quotient)
        softmax = view.call(quotient, "nn.softmax")
        if softmax is not None:
            rank = len(softmax.ty.shape.values)
            axis = int(softmax.attrs.axis) % rank
            return softmax.args[0], axis, 1.0, dtype_of(softmax), MINUS
        found = exponentials(view, quotient)
        if not isinstance(found, tuple):
            return found
        source, factor, is_shifted = shifted(view, *found)
        changes = MINUS if is_shifted else ALL
        return source, found[1], factor, dtype_of(found[0]), changes

    def _of_difference(
        self, view: View, root: Any
    ) -> tuple[Any, int, float, str, NonFinite] | Mismatch | None:
        for logarithm in anchored(view, root, "log"):
            reduction = view.reduction(_uncast(view, view.value(logarithm).args[0]))
            e = None if reduction is None else _uncast(view, reduction.source)
            if reduction is None or reduction.kind != "sum" or view.call(e, "exp") is None:
                continue
            if len(reduction.axes) != 1:
                return Mismatch(logarithm, "the sum is over several axes")
            (axis,) = reduction.axes
            argument = view.value(e).args[0]
            source, factor, is_shifted = shifted(view, e, axis)
            rows: tuple[Any, Axes] = (reduced(view, "max", source, (axis,)), kept(reduction))
            marks = {"log": (logarithm, reduction.kept), "max": rows}
            found = over(view, root, source, marks)
            expected = over(view, argument, source, {"max": rows})
            if expected is None or not is_same(found, {**expected, **terms((-1, {_L: 1}))}):
                return Mismatch(
                    logarithm,
                    "the logarithm of the sum is not subtracted from the exponent",
                )
            return source, axis, factor, dtype_of(e), NONE if is_shifted else ALL
        return None


def _uncast(view: View, expr: Any) -> Any:
    while view.is_cast(expr):
        expr = view.value(expr).args[0]
    return expr


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


class ShiftedSoftmax(Pattern):
    """``softmax(x - max(x, axis), axis) = softmax(x, axis)``, and so its logarithm.

    Models that append attention sinks to the scores subtract the maximum themselves.
    """

    name = "shifted_softmax"
    roots = anchors = frozenset({"nn.softmax", "nn.log_softmax"})

    def match(self, view: View, root: relax.Var) -> Match | None:
        """Find softmax of what a maximum was subtracted from."""
        call = view.value(root)
        axis, argument = int(call.attrs.axis) % len(call.ty.shape.values), call.args[0]
        source, factor, _ = shifted(view, root, axis)
        if hash(source) == hash(argument):
            return None

        def build(write: Writer, x: Any) -> Any:
            x = write.scale(write.cast(x, dtype_of(argument)), factor)
            return write.emit(relax.Call(call.op, [x], call.attrs))

        return Match((source,), build)


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
