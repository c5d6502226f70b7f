"""Constants whose elements follow from their indices: one number, sequences, bands.

A causal mask is ``key <= query + offset``, a sliding window has two such bounds, the positions of
``arange`` are a multiple of an index. Kernels that know it compute such elements, skip what a mask
hides, and read no tensor.
"""

from collections.abc import Sequence

import numpy as np
from tvm import ir, tirx

from ..core.constants.numpy_types import array_of
from ..core.constants.weight_names import is_weight
from ..core.tir.expressions import int64, substitute

LARGEST = 1 << 26  # elements of a constant that are looked at
_SAMPLE = 64  # elements, evenly spread, that reject most constants


def closed_form(constant: ir.GenericConst) -> tirx.IndexMap | None:
    """Find an expression of the indices that gives every element of a constant.

    Parameters
    ----------
    constant
        A tensor. Weights of the model have none: others may replace them when the artifact is
        loaded.

    Returns
    -------
    tirx.IndexMap or None
        From indices (int64) to one expression of the tensor's type: a number, an arithmetic
        sequence along one axis, perhaps repeated, or two numbers of which one fills a band along
        the diagonal of two axes or a stretch of one axis.
    """
    if is_weight(constant):
        return None
    extents = [int(extent) for extent in constant.value.shape]
    dtype = str(constant.value.dtype)
    if 0 in extents or np.prod(extents, dtype="int64") > LARGEST:
        return None
    axes = [ir.Var(f"i{number}", ir.PrimType("int64")) for number in range(len(extents))]
    value = _element(array_of(constant.value), axes, dtype)
    return None if value is None else tirx.IndexMap(axes, [value], None)


def element_at(form: tirx.IndexMap, indices: Sequence[ir.Expr]) -> ir.Expr:
    """Return the element of a closed form at some indices."""
    known = dict(zip(form.initial_indices, map(int64, indices), strict=True))
    return substitute(form.final_indices[0], known)


def _element(array: np.ndarray, axes: Sequence[ir.Var], dtype: str) -> ir.Expr | None:
    flat = array.reshape(-1)
    first = flat[0]
    sample = flat[:: max(1, flat.size // _SAMPLE)]
    if not (sample == first).all():
        others = sample[sample != first]
        if not (others == others[0]).all():
            return _sequence(array, axes, dtype)
    is_other = array != first
    if not is_other.any():
        return _number(first, dtype)
    other = flat[int(is_other.reshape(-1).argmax())]
    if not (array[is_other] == other).all():
        return _sequence(array, axes, dtype)
    # The larger one of both is what a mask lets through.
    condition = _condition(is_other if other > first else ~is_other, axes)
    if condition is None or dtype == "bool":
        return condition
    pair = (_number(max(first, other), dtype), _number(min(first, other), dtype))
    return tirx.Select(condition, *pair)


def _number(value: np.generic, dtype: str) -> ir.Expr:
    return tirx.const(value.item(), dtype)


def _sequence(array: np.ndarray, axes: Sequence[ir.Var], dtype: str) -> ir.Expr | None:
    """Read positions: ``first + step * index`` along the only axis, anew for each head of some."""
    along = [axis for axis, extent in zip(axes, array.shape, strict=True) if extent > 1]
    if len(along) != 1 or array.dtype.kind not in "iu":
        return None
    flat = array.reshape(-1).astype("int64")
    step, again = int(flat[1] - flat[0]), np.flatnonzero(flat == flat[0])
    period = int(again[1]) if len(again) > 1 else len(flat)
    if not (flat == flat[0] + step * (np.arange(len(flat)) % period)).all():
        return None
    place: ir.Expr = along[0]
    if period < len(flat):
        place = tirx.floormod(place, tirx.IntImm("int64", period))
    value = place * step + int(flat[0])
    return value if dtype == "int64" else tirx.Cast(dtype, value)


def _condition(mask: np.ndarray, axes: Sequence[ir.Var]) -> ir.Expr | None:
    """Tell by the indices where a mask of both values is true."""
    for axis in range(mask.ndim):
        one = mask.take([0], axis)
        if (mask == one).all():
            mask = one
    along = [axis for axis, extent in enumerate(mask.shape) if extent > 1]
    if len(along) == 1:
        return _stretch(mask.reshape(-1), axes[along[0]], 0)
    if len(along) != 2:
        return None
    row: ir.Expr = axes[along[0]]
    column: ir.Expr = axes[along[1]]
    mask = mask.reshape([mask.shape[axis] for axis in along])
    # Heads that share keys are rows of one product: their mask is repeated.
    rows, columns = _period(mask), _period(mask.T)
    if rows < len(mask):
        row = tirx.floormod(row, tirx.IntImm("int64", rows))
    elif columns < mask.shape[1]:
        column = tirx.floormod(column, tirx.IntImm("int64", columns))
    mask = mask[:rows] if rows < len(mask) else mask[:, :columns]
    if not (mask[1:, 1:] == mask[:-1, :-1]).all():
        return None
    diagonals = np.concatenate([mask[:0:-1, 0], mask[0]])
    return _stretch(diagonals, column, 1 - mask.shape[0], row)


def _period(mask: np.ndarray) -> int:
    """Return the number of rows after which they repeat."""
    rows = len(mask)
    for period in range(1, rows // 2 + 1):
        is_period = rows % period == 0 and (mask[period] == mask[0]).all()
        if is_period and (mask[period:] == mask[:-period]).all():
            return period
    return rows


def _stretch(
    mask: np.ndarray, axis: ir.Expr, first: int, start: ir.Expr | None = None
) -> ir.Expr | None:
    """Bound an index, counted from ``start``, to where a mask is true; or not to be elsewhere."""
    for is_seen in (True, False):
        places = np.flatnonzero(mask == is_seen)
        low, high = int(places[0]), int(places[-1])
        if high - low + 1 != len(places):
            continue

        def at(place: int) -> ir.Expr:
            number = tirx.IntImm("int64", first + place)
            if start is None:
                return number
            return start if first + place == 0 else start + number

        bounds = [axis >= at(low)] if low > 0 else []
        bounds += [axis <= at(high)] if high < len(mask) - 1 else []
        condition = tirx.all(*bounds)
        return condition if is_seen else tirx.Not(condition)
    return None
