"""Mish: a product with the hyperbolic tangent of the softplus."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...frontend.tensor_types import dtype_of
from .match import X, anchored, atom, candidates, is_itself, is_same, over, terms
from .pattern import Match, Pattern, Writer
from .view import View, op_name

_T, _E = atom("tanh"), atom("exp")
_LARGE = 15.0  # softplus is its argument from here on
# exp(x) * (exp(x) + 2) is finite up to here, and from here on so large that two more is nothing.
_CAP = {"float16": 5.5}
_WIDE_CAP = 20.0


class Mish(Pattern):
    """``x * tanh(log(1 + exp(x))) = x * n / (n + 2)``, where ``n = w * (w + 2)``, ``w = exp(x)``.

    Relax has no operator for it. The right side takes one exponential and one division instead of
    three transcendental functions, and ``1 + exp(x)`` does not swallow small exponentials. Above
    20 (5.5 in half precision) the quotient is 1, so ``x`` is limited to that in ``w``.
    """

    name = "mish"
    roots = frozenset({"multiply"})
    anchors = frozenset({"tanh"})

    def match(self, view: View, root: relax.Var) -> Match | None:
        """Find a product with tanh of softplus; misses say nothing, as tanh has other uses."""
        for t in anchored(view, root, "tanh"):
            for x in candidates(view, root):
                product = terms((1, {X: 1, _T: 1}))
                if is_same(over(view, root, x, {"tanh": (t, None)}), product) and _is_softplus(
                    view, view.value(t).args[0], x
                ):
                    return Match((x,), _builder(root))
        return None


def _is_softplus(view: View, expr: Any, x: Any) -> bool:
    expr = view.peel(expr)
    value = view.value(expr)
    name = op_name(value)
    if name == "nn.softplus":
        return value.attrs.beta == 1 and is_itself(view, value.args[0], x)
    if name == "where" and view.call(value.args[0], "less") is not None:
        # log(1 + w) as importers write it: near zero by another function, with all digits.
        return _is_near_log1p(view, value.args[1], x) and _is_softplus(view, value.args[2], x)
    if name == "where":  # softplus(x) is x for large x
        condition = view.call(value.args[0], "greater", "greater_equal")
        limit = None if condition is None else view.number(condition.args[1])
        return (
            condition is not None
            and limit is not None
            and limit >= _LARGE
            and all(is_itself(view, e, x) for e in (condition.args[0], value.args[1]))
            and _is_softplus(view, value.args[2], x)
        )
    if name == "log1p":
        e = view.call(view.peel(value.args[0]), "exp")
        return e is not None and is_itself(view, e.args[0], x)
    if name == "log":
        for e in anchored(view, value.args[0], "exp"):
            one_more = over(view, value.args[0], x, {"exp": (e, None)})
            if is_itself(view, view.value(e).args[0], x) and is_same(
                one_more, terms((1, {}), (1, {_E: 1}))
            ):
                return True
    return False


def _is_near_log1p(view: View, expr: Any, x: Any) -> bool:
    """Whether an expression is ``2 atanh(w / (2 + w))``, which is ``log(1 + w)``."""
    product = view.call(view.peel(expr), "multiply")
    for two, other in () if product is None else (product.args, product.args[::-1]):
        inverse = view.call(view.peel(other), "atanh")
        quotient = None if inverse is None else view.call(view.peel(inverse.args[0]), "divide")
        if quotient is None or view.number(two) != 2:
            continue
        w = view.peel(quotient.args[0])
        e, two_more = view.call(w, "exp"), terms((2, {}), (1, {_E: 1}))
        if e is not None and is_itself(view, e.args[0], x):
            return is_same(over(view, quotient.args[1], x, {"exp": (w, None)}), two_more)
    return False


def _builder(root: relax.Var) -> Any:
    def build(write: Writer, x: Any) -> Any:
        dtype = dtype_of(root)
        x = write.cast(x, dtype)
        cap = relax.const(_CAP.get(dtype, _WIDE_CAP), dtype)
        two = relax.const(2.0, dtype)
        w = write.emit(relax.op.exp(write.emit(relax.op.minimum(x, cap))))
        n = write.emit(relax.op.multiply(w, write.emit(relax.op.add(w, two))))
        quotient = relax.op.divide(n, write.emit(relax.op.add(n, two)))
        return write.like(write.emit(relax.op.multiply(x, write.emit(quotient))), root)

    return build
