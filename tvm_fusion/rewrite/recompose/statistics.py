"""Match the divisor of a norm: sqrt(variance + epsilon), or sqrt(mean of squares + epsilon)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from tvm import relax

from .coefficient import is_close, plain
from .extents import extent, known_shape, same_shape
from .match import (
    ANY,
    Axes,
    X,
    anchored,
    atom,
    candidates,
    is_same,
    kept,
    over,
    reduced,
    reductions,
    terms,
)
from .polynomial import ONE, Atom, Expansion, Polynomial, monomial
from .view import Reduction, View, op_name

M, V, _T = atom("mean"), atom("spread"), atom("total")
_CLAMPS = ("maximum", "nn.relu")
_TRIES = 2  # roots that are looked at from one variable
_CENTRED = terms((1, {X: 2}), (-2, {X: 1, M: 1}), (1, {M: 2}))
_RAW = terms((1, {X: 2}))


@dataclass(frozen=True)
class Spread:
    """``factor * (spread(x) + epsilon)``.

    Attributes
    ----------
    var : relax.Var
        Which is this.
    x : ir.Expr
        What the spread is of.
    is_centred : bool
        Whether it is the mean of the squared deviations from the mean, or that of the squares.
    axes : tuple of int
        Of ``x``, over which means are taken.
    along : Axes
        Of ``x``, that those of ``var`` run along.
    factor, epsilon : float
        Numbers.
    """

    var: relax.Var
    x: Any
    is_centred: bool
    axes: tuple[int, ...]
    along: Axes
    factor: float
    epsilon: float

    def expand(self, view: View, root: Any) -> Polynomial | None:
        """Expand an expression over :data:`X`, its mean :data:`M`, and the spread :data:`V`."""
        rows = tuple(a for a in range(len(known_shape(self.x) or [])) if a not in self.axes)
        marks = {"spread": (self.var, self.along), **_means(view, self.x, self.axes, rows)}
        return _with_means(over(view, root, self.x, marks), self.x, self.axes)


def spreads(view: View, root: Any) -> Iterator[Spread | str]:
    """Yield what is under the roots that arithmetic leads to; a reason where it is no spread."""
    found = anchored(view, root, "sqrt", "rsqrt", "power")
    for var in itertools.islice(found, _TRIES):
        yield view.once(("spread", hash(var)), partial(_under, view, var))


def _under(view: View, var: relax.Var) -> Spread | str:
    return read_spread(view, _uninverted(view, view.value(var).args[0]))


def read_spread(view: View, var: Any) -> Spread | str:
    """Read an expression as a spread, or say why it is none."""
    expansion = Expansion(view, lambda expr: _reduction_name(view, expr))
    found = dict(expansion.of(var) or {})
    epsilon = found.pop(ONE, 0.0)
    for _ in range(2):  # a variance is not negative: max(v, 0) is v
        inner = _clamped(view, expansion, found)
        if inner is not None:
            found = inner
    read = [_read_term(view, m, c) for m, c in found.items()]
    terms_read = [r for r in read if r is not None]
    if not found or len(terms_read) != len(found):
        return "the square root is not of a variance or a mean of squares"
    powers = {exponent: (c, w, r) for c, w, r, exponent in terms_read}
    if len(terms_read) == 1 and 1 in powers:
        coefficient, where, reduction = powers[1]
        of = _spread_of(view, reduction)
    elif len(terms_read) == 2 and set(powers) == {1, 2} and is_close(powers[2][0], -powers[1][0]):
        coefficient, where, reduction = powers[1]
        of = _spread_by_moments(view, reduction, powers[2][2])
    else:
        return "the square root is not of a variance or a mean of squares"
    if isinstance(of, str):
        return of
    x, is_centred = of
    if coefficient <= 0 or epsilon < 0:
        return "the argument of the square root may be negative"
    along = [None if extent(e) == 1 else ANY for e in known_shape(var) or []]
    for own, axis in zip(where, kept(reduction), strict=True):
        if own is not None:
            along[own] = axis
    if is_close(coefficient, 1.0):
        coefficient = 1.0
    return Spread(
        var, x, is_centred, reduction.axes, tuple(along), coefficient, plain(epsilon / coefficient)
    )


def _uninverted(view: View, expr: Any) -> Any:
    """Return ``v`` for ``1 / v``."""
    call = view.call(expr, "divide")
    return call.args[1] if call is not None and view.number(call.args[0]) == 1 else expr


def _reduction_name(view: View, expr: Any) -> str | None:
    found = view.reduction(expr)
    is_named = found is not None and found.kind in ("mean", "sum", "variance")
    return str(hash(expr)) if is_named or view.call(expr, *_CLAMPS) is not None else None


def _clamped(view: View, expansion: Expansion, found: Polynomial) -> Polynomial | None:
    if len(found) != 1:
        return None
    ((factors, coefficient),) = found.items()
    if len(factors) != 1 or factors[0][1] != 1 or coefficient != 1:
        return None
    value = view.value(view.atoms[factors[0][0].name])
    is_clamped = op_name(value) == "nn.relu" or (
        op_name(value) == "maximum" and view.number(value.args[1]) == 0
    )
    return expansion.of(value.args[0]) if is_clamped else None


def _read_term(
    view: View, factors: tuple[tuple[Atom, Fraction], ...], coefficient: float
) -> tuple[float, tuple[int | None, ...], Reduction, int] | None:
    """Read a mean, or its square, sums as means: coefficient, axes, reduction and exponent."""
    if len(factors) != 1 or factors[0][1] not in (1, 2):
        return None
    part, exponent = factors[0]
    reduction = view.reduction(view.atoms[part.name])
    if reduction is None or reduction.kind not in ("mean", "sum", "variance"):
        return None
    if reduction.kind == "sum":
        if reduction.size is None:
            return None
        coefficient *= float(reduction.size) ** int(exponent)
    return coefficient, part.where, reduction, int(exponent)


def _spread_of(view: View, reduction: Reduction) -> tuple[Any, bool] | str:
    if reduction.kind == "variance":
        return reduction.source, True
    squares = reduction.source
    for _, mean in reductions(view, squares, "mean", "sum"):
        x = mean.source
        if mean.axes != reduction.axes or not _same_shapes(x, squares):
            return "the deviations are from a mean over other axes"
        found = _with_means(
            over(view, squares, x, _means(view, x, mean.axes, kept(mean))), x, mean.axes
        )
        if is_same(found, _CENTRED):
            return x, True
    for x in candidates(view, squares):
        if _same_shapes(x, squares) and is_same(over(view, squares, x), _RAW):
            return x, False
    return "the mean is not of squares"


def _spread_by_moments(view: View, squares: Reduction, mean: Reduction) -> tuple[Any, bool] | str:
    """Read ``mean(x^2) - mean(x)^2``, which the centred form can only be more accurate than."""
    x = mean.source
    if mean.axes != squares.axes or "variance" in (mean.kind, squares.kind):
        return "the squares and the mean are over other axes"
    is_of_x = _same_shapes(x, squares.source) and is_same(over(view, squares.source, x), _RAW)
    return (x, True) if is_of_x else "the squares are of something other than the mean"


def _means(
    view: View, x: Any, axes: tuple[int, ...], rows: tuple[int, ...]
) -> dict[str, tuple[Any, tuple[int, ...]]]:
    kinds = {"mean": "mean", "total": "sum"}
    return {name: (reduced(view, kind, x, axes), rows) for name, kind in kinds.items()}


def _with_means(found: Polynomial | None, x: Any, axes: tuple[int, ...]) -> Polynomial | None:
    """Write sums as means."""
    if found is None:
        return None
    size = Reduction("sum", x, axes, ()).size
    result: Polynomial = {}
    for factors, coefficient in found.items():
        exponents = dict(factors)
        total = exponents.pop(_T, Fraction(0))
        if total:
            if size is None:
                return None
            coefficient *= float(size) ** float(total)
            exponents[M] = exponents.get(M, Fraction(0)) + total
        key = monomial(exponents)
        result[key] = result.get(key, 0.0) + coefficient
    return result


def _same_shapes(a: Any, b: Any) -> bool:
    return same_shape(known_shape(a) or [], known_shape(b) or [])
