"""Logarithm of softmax, also where the quotient was never formed."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...frontend.tensor_types import dtype_of
from ..nonfinite import ALL, MINUS, NONE, NonFinite
from .match import Axes, anchored, atom, is_same, kept, over, reduced, terms
from .pattern import Match, Mismatch, Pattern, Writer
from .softmax import exponentials, shifted
from .view import View

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
