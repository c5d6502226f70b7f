"""The sigmoid linear unit, or swish."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .gelu import curve
from .match import X, anchored, atom, candidates, is_same, over, terms
from .pattern import Match, Pattern, Writer
from .view import View

_E, _D = atom("e"), atom("d")


class Silu(Pattern):
    """``x * sigmoid(x) = x / (1 + exp(-x)) = x / 2 * (1 + tanh(x / 2)) = silu(x)``."""

    name = "silu"
    roots = frozenset({"multiply", "divide", "add"})
    anchors = frozenset({"sigmoid", "exp", "tanh"})

    def match(self, view: View, root: relax.Var) -> Match | None:
        """Find a product with the sigmoid of one of its factors."""
        product = terms((1.0, {X: 1, atom("f"): 1}))
        halves = terms((0.5, {X: 1}), (0.5, {X: 1, atom("f"): 1}))
        # Misses say nothing: all of these functions have other uses.
        for function, argument, result in (
            ("sigmoid", terms((1.0, {X: 1})), product),
            ("tanh", terms((0.5, {X: 1})), halves),
        ):
            found = curve(view, root, function, argument, result, relax.op.nn.silu)
            if isinstance(found, Match):
                return found
        return self._written_out(view, root)

    def _written_out(self, view: View, root: relax.Var) -> Match | None:
        for e in anchored(view, root, "exp"):
            for x in candidates(view, view.value(e).args[0]):
                if not is_same(over(view, view.value(e).args[0], x), terms((-1.0, {X: 1}))):
                    continue
                for d in anchored(view, root, "add"):
                    if is_same(
                        over(view, d, x, {"e": (e, None)}), terms((1, {}), (1, {_E: 1}))
                    ) and is_same(
                        over(view, root, x, {"d": (d, None)}),
                        terms((1, {X: 1, _D: -1})),
                    ):
                        return Match((x,), _build(root))
        return None


def _build(root: relax.Var) -> Any:
    def build(write: Writer, x: Any) -> Any:
        return write.like(write.emit(relax.op.nn.silu(x)), root)

    return build
