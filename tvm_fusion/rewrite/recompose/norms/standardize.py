"""Standardized rows, scaled and shifted: the form that layer, RMS, group and batch norms share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from tvm import relax

from ....frontend.tensor_types import HALF, dtype_of
from ..matching.coefficient import is_close, plain, power
from ..matching.extents import extent, known_shape, same_shape
from ..matching.match import (
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
from ..matching.polynomial import ONE, Atom, Expansion, Monomial, Polynomial, Where, monomial
from ..matching.view import Reduction, View, op_name
from ..pattern import Mismatch, Writer

_HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Vector:
    """A factor times a tensor that is repeated along some axes of the whole, or a number.

    Attributes
    ----------
    factor
        The number.
    expr : ir.Expr or None
        The tensor.
    where
        Axes of the whole that the tensor's run along.
    """

    factor: float
    expr: Any = None
    where: Where = ()

    def lies_in(self, axes: tuple[int, ...]) -> bool:
        """Whether it changes along no other axes than these, and along them in order."""
        own = [axis for axis in self.where if axis is not None]
        return own == sorted(own) and set(own) <= set(axes)

    def write(
        self, write: Writer, current: Any, axes: tuple[int, ...], shape: list[Any], dtype: str
    ) -> Any:
        """Write it with the axes of the whole that it lies in, which have some extents."""
        if self.expr is None:
            return write.filled(shape, self.factor, dtype)
        own = [e if axis in self.where else 1 for axis, e in zip(axes, shape, strict=True)]
        value = write.reshape(write.cast(current, dtype), own)
        return write.scale(write.broadcast(value, shape), self.factor)


@dataclass(frozen=True)
class Standardized:
    """``(x - mean(x)) / sqrt(variance(x) + epsilon) * scale + shift``, or without the means."""

    spread: Spread  # of ``x``
    axes: tuple[int, ...]  # of the root, over which means are taken
    # None for 1 and for 0.
    scale: Vector | None
    shift: Vector | None


def standardized(view: View, root: Any, is_centred: bool) -> Standardized | Mismatch | None:
    """Find rows that are divided by their spread; a mismatch where some nearly are."""
    mismatch: Mismatch | None = None
    for spread in spreads(view, root):
        if isinstance(spread, str) or spread.is_centred is not is_centred:
            continue
        found = spread.expand(view, root)
        axes = _axes_in(root, spread)
        if found is None or axes is None:
            reason = "rows are not divided by their own deviation"
        else:
            affine = _affine(view, found, spread)
            if not isinstance(affine, str):
                return Standardized(spread, axes, *affine)
            reason = affine
        mismatch = mismatch or Mismatch(spread.var, reason)
    return mismatch


def _affine(
    view: View, found: Polynomial, spread: Spread
) -> tuple[Vector | None, Vector | None] | str:
    """Read a polynomial as scale and shift, or say why it is something else."""
    by_part: dict[Atom, Polynomial] = {X: {}, M: {}}
    shift: Polynomial = {}
    for factors, coefficient in found.items():
        rest = dict(factors)
        exponents = [rest.pop(part, 0) for part in (V, X, M)]
        if exponents == [0, 0, 0]:
            shift[monomial(rest)] = coefficient
        elif exponents in ([-_HALF, 1, 0], [-_HALF, 0, 1]):
            by_part[X if exponents[1] else M][monomial(rest)] = coefficient
        else:
            return "rows are not divided by the root of their variance"
    if len(by_part[X]) != 1:
        return "rows are not multiplied by one scale"
    ((gain, factor),) = by_part[X].items()
    means = {gain: -factor} if spread.is_centred else {}
    if by_part[M].keys() != means.keys() or not all(
        is_close(by_part[M][m], c) for m, c in means.items()
    ):
        return (
            "the value subtracted is not the mean" if spread.is_centred else "a mean is subtracted"
        )
    factor *= power(spread.factor, -0.5)
    if is_close(factor, 1.0):
        factor = 1.0
    scale = vector(view, gain, factor)
    if len(shift) > 1 or scale is None:
        return "scale or shift are of several tensors"
    offset = None
    for term, coefficient in shift.items():
        offset = vector(view, term, coefficient)
        if offset is None:
            return "scale or shift are of several tensors"
    return (None if scale == Vector(1.0) else scale), offset


def vector(view: View, term: Monomial, factor: float) -> Vector | None:
    """Read a term as a number, or as a tensor times a number."""
    if term == ONE:
        return Vector(factor)
    if len(term) != 1 or term[0][1] != 1:
        return None
    part = term[0][0]
    return Vector(factor, view.atoms[part.name], part.where)


def operands_of(
    view: View, spread: Spread, scale: Vector | None, shift: Vector | None, root: Any
) -> tuple[Any, tuple[Vector, Vector], str]:
    """Choose the type that a norm's operands are given in.

    It is that of the spread; but the root's where that is a half type, so is every operand before
    it was widened, and no factor would be rounded.

    Returns
    -------
    x : ir.Expr
        What is standardized.
    vectors : tuple of Vector
        The scale and the shift.
    dtype : str
        To cast all of them to.
    """
    x = view.narrow(spread.x)
    wide = scale or Vector(1.0), shift or Vector(0.0)
    narrow = tuple(replace(v, expr=view.narrow(v.expr)) for v in wide)
    half = dtype_of(root)
    is_half = half in HALF and dtype_of(x) == half
    for v, number in zip(narrow, (1.0, 0.0), strict=True):
        is_half &= v.factor == number if v.expr is None else _is_copy(v, half)
    if is_half:
        return x, (narrow[0], narrow[1]), half
    return spread.x, wide, dtype_of(spread.var)


def _is_copy(vector: Vector, dtype: str) -> bool:
    return dtype_of(vector.expr) == dtype and vector.factor == 1


def _axes_in(root: Any, spread: Spread) -> tuple[int, ...] | None:
    """Say which axes of the root the means are over."""
    own, whole = known_shape(spread.x) or [], known_shape(root) or []
    if len(own) == len(whole):
        return spread.axes
    wide = [i for i, e in enumerate(whole) if extent(e) != 1]
    if len(wide) != sum(extent(e) != 1 for e in own):
        return None
    axes = iter(wide)
    place = [None if extent(e) == 1 else next(axes) for e in own]
    found = tuple(p for p in (place[a] for a in spread.axes) if p is not None)
    return found if len(found) == len(spread.axes) else None


# Match the divisor of a norm: sqrt(variance + epsilon), or sqrt(mean of squares + epsilon).
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
    var
        Which is this.
    x : ir.Expr
        What the spread is of.
    is_centred
        Whether it is the mean of the squared deviations from the mean, or that of the squares.
    axes
        Of ``x``, over which means are taken.
    along
        Of ``x``, that those of ``var`` run along.
    factor, epsilon
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
