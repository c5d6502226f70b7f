"""Standardized rows, scaled and shifted: the form that layer, RMS, group and batch norms share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ...frontend.tensor_types import HALF, dtype_of
from .coefficient import is_close, power
from .extents import extent, known_shape
from .match import X
from .pattern import Mismatch, Writer
from .polynomial import ONE, Atom, Monomial, Polynomial, Where, monomial
from .statistics import M, Spread, V, spreads
from .view import View

_HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Vector:
    """A factor times a tensor that is repeated along some axes of the whole, or a number.

    Attributes
    ----------
    factor : float
        The number.
    expr : ir.Expr or None
        The tensor.
    where : Where
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
    """``(x - mean(x)) / sqrt(variance(x) + epsilon) * scale + shift``, or without the means.

    Attributes
    ----------
    spread : Spread
        Of ``x``.
    axes : tuple of int
        Of the root, over which means are taken.
    scale, shift : Vector or None
        None for 1 and for 0.
    """

    spread: Spread
    axes: tuple[int, ...]
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
