"""Hard swish: a product with a clipped line."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ...frontend.tensor_types import dtype_of
from ..nonfinite import INFINITE
from .coefficient import is_close
from .match import X, anchored, atom, candidates, over, terms
from .pattern import Match, Pattern, Writer
from .polynomial import ONE
from .view import View, op_name

_C = atom("clipped")
_LINE = next(iter(terms((1, {X: 1}))))
_PRODUCT = next(iter(terms((1, {X: 1, _C: 1}))))


class HardSwish(Pattern):
    """``x * clip(x / 6 + 1 / 2, 0, 1) = x * (clip(x + 3, 0, 6) * (1 / 6))``.

    Relax has no operator for it. Every way of writing it becomes the right side: the sum keeps the
    digits of ``x`` near -3, and no intermediate result overflows that the result would not.
    """

    name = "hard_swish"
    roots = frozenset({"multiply", "divide"})
    anchors = frozenset({"clip", "minimum", "maximum", "nn.relu6"})

    def match(self, view: View, root: relax.Var) -> Match | None:
        """Find a product with a clipped line; misses say nothing, as products have other uses."""
        for clipped in anchored(view, root, *self.anchors):
            read = _clip(view, clipped)
            if read is None:
                continue
            argument, low, high = read
            for x in candidates(view, argument):
                line = over(view, argument, x) or {}
                product = over(view, root, x, {"clipped": (clipped, None)}) or {}
                if set(line) != {_LINE, ONE} or set(product) != {_PRODUCT}:
                    continue
                factor = product[_PRODUCT]
                found = [factor * v for v in (line[_LINE], line[ONE], high)]
                expected = (1 / 6, 1 / 2, 1.0)
                if low == 0 and all(is_close(f, e) for f, e in zip(found, expected, strict=True)):
                    return Match((x,), _builder(root), changes=INFINITE)
        return None


def _clip(view: View, var: Any) -> tuple[Any, float, float] | None:
    """Read ``min(max(x, low), high)`` in any order: ``x`` and the bounds."""
    bounds: dict[str, float] = {}
    for _ in range(2):
        value = view.value(var)
        name = op_name(value)
        if name == "clip":
            low, high = (view.number(b) for b in value.args[1:])
            return None if low is None or high is None else (value.args[0], low, high)
        if name == "nn.relu6":
            return value.args[0], 0.0, 6.0
        if name == "nn.relu":
            var, bounds["maximum"] = value.args[0], 0.0
        elif name in ("minimum", "maximum"):
            numbers = [view.number(arg) for arg in value.args]
            if (numbers[0] is None) is (numbers[1] is None):
                return None
            at = 0 if numbers[1] is None else 1
            var, bounds[name] = value.args[1 - at], numbers[at] or 0.0
        if len(bounds) == 2:
            return var, bounds["maximum"], bounds["minimum"]
    return None


def _builder(root: relax.Var) -> Any:
    def build(write: Writer, x: Any) -> Any:
        dtype = dtype_of(root)
        x = write.cast(x, dtype)
        line = write.emit(relax.op.add(x, relax.const(3.0, dtype)))
        low, high = (tirx.FloatImm(dtype, bound) for bound in (0.0, 6.0))
        clipped = write.emit(relax.op.clip(line, low, high))
        return write.like(write.emit(relax.op.multiply(x, write.scale(clipped, 1 / 6))), root)

    return build
