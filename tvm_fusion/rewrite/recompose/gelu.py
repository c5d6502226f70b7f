"""The Gaussian error linear unit, by the error function and by its approximation."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from .match import X, anchored, atom, candidates, is_same, over, terms
from .pattern import Match, Mismatch, Pattern, Writer
from .view import View

_F = atom("f")
_S = math.sqrt(2 / math.pi)
_CUBE = 0.044715


class Gelu(Pattern):
    """``x / 2 * (1 + erf(x / sqrt(2))) = gelu(x)``."""

    name = "gelu"
    roots = frozenset({"multiply", "divide", "add"})
    anchors = frozenset({"erf"})

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find a product with the error function of one of its factors."""
        return curve(view, root, "erf", terms((math.sqrt(0.5), {X: 1})), _HALVES, relax.op.nn.gelu)


class GeluTanh(Pattern):
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) = gelu_tanh(x)``.

    ``x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3))`` is the same.
    """

    name = "gelu_tanh"
    roots = frozenset({"multiply", "divide", "add"})
    anchors = frozenset({"tanh", "sigmoid"})

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find a product with the hyperbolic tangent of a cubic of one of its factors."""
        cubic = terms((_S, {X: 1}), (_S * _CUBE, {X: 3}))
        found = curve(view, root, "tanh", cubic, _HALVES, relax.op.nn.gelu_tanh)
        if found is not None:
            return found
        cubic = terms((2 * _S, {X: 1}), (2 * _S * _CUBE, {X: 3}))
        found = curve(view, root, "sigmoid", cubic, _PRODUCT, relax.op.nn.gelu_tanh)
        return found if isinstance(found, Match) else None  # sigmoid has other uses


_HALVES = terms((0.5, {X: 1}), (0.5, {X: 1, _F: 1}))
_PRODUCT = terms((1.0, {X: 1, _F: 1}))


def curve(
    view: View, root: relax.Var, function: str, argument: Any, result: Any, operator: Any
) -> Match | Mismatch | None:
    """Find an activation that is a polynomial of ``x`` and of a function of a polynomial of ``x``.

    Parameters
    ----------
    root
        What the activation may be.
    function
        Operator, such as ``erf``.
    argument, result : Polynomial
        Over :data:`X`; the result over the mark ``f`` as well.
    operator : callable
        Takes ``x``.
    """
    near = None
    for f in anchored(view, root, function):
        for x in candidates(view, view.value(f).args[0]):
            if not is_same(over(view, view.value(f).args[0], x), argument):
                continue
            near = f
            if is_same(over(view, root, x, {"f": (f, None)}), result):
                return Match((x,), _apply(operator, root))
        if near is None:
            return Mismatch(f, f"the argument of {function} is not a GELU's")
    return (
        Mismatch(near, f"{function} is not combined with its input as in a GELU")
        if near is not None
        else None
    )


def _apply(operator: Any, root: relax.Var) -> Any:
    def build(write: Writer, x: Any) -> Any:
        return write.like(write.emit(operator(x)), root)

    return build
