"""Find SiLU, hard swish and Mish in the operators that exporters make of them."""

import math
from typing import Any

from tvm import relax, tirx

from ...frontend.tensor_types import dtype_of
from ..nonfinite import INFINITE
from .matching.coefficient import is_close
from .matching.match import X, anchored, atom, candidates, is_itself, is_same, over, terms
from .matching.polynomial import ONE
from .matching.view import View, op_name
from .pattern import Match, Mismatch, Pattern, Writer

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
        found = curve(view, root, "sigmoid", cubic, _CUBIC_PRODUCT, relax.op.nn.gelu_tanh)
        return found if isinstance(found, Match) else None  # sigmoid has other uses


_HALVES = terms((0.5, {X: 1}), (0.5, {X: 1, _F: 1}))
_CUBIC_PRODUCT = terms((1.0, {X: 1, _F: 1}))


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
                    return Match((x,), _hard_swish(root), changes=INFINITE)
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


def _hard_swish(root: relax.Var) -> Any:
    def build(write: Writer, x: Any) -> Any:
        dtype = dtype_of(root)
        x = write.cast(x, dtype)
        line = write.emit(relax.op.add(x, relax.const(3.0, dtype)))
        low, high = (tirx.FloatImm(dtype, bound) for bound in (0.0, 6.0))
        clipped = write.emit(relax.op.clip(line, low, high))
        return write.like(write.emit(relax.op.multiply(x, write.scale(clipped, 1 / 6))), root)

    return build


_T, _EXP = atom("tanh"), atom("exp")
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
                    return Match((x,), _mish(root))
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
                one_more, terms((1, {}), (1, {_EXP: 1}))
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
        e, two_more = view.call(w, "exp"), terms((2, {}), (1, {_EXP: 1}))
        if e is not None and is_itself(view, e.args[0], x):
            return is_same(over(view, quotient.args[1], x, {"exp": (w, None)}), two_more)
    return False


def _mish(root: relax.Var) -> Any:
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
