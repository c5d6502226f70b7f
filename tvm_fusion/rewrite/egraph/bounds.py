"""Value ranges of operators: signs, redundant clamps, and tensors of one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from tvm import relax, tirx

from .head import Head


class Bounds(NamedTuple):
    """Between which numbers all elements lie that are no NaN."""

    low: float = -math.inf
    high: float = math.inf

    def hull(self, other: Bounds) -> Bounds:
        """Return the union of two bounds."""
        return Bounds(min(self.low, other.low), max(self.high, other.high))


ANY = Bounds()
NONNEGATIVE = Bounds(0.0)
_UNIT = Bounds(0.0, 1.0)
_SIGNED_UNIT = Bounds(-1.0, 1.0)

_RANGES = {
    **dict.fromkeys(("exp", "sqrt", "rsqrt", "abs", "square", "nn.relu", "cosh"), NONNEGATIVE),
    **dict.fromkeys(("variance", "std"), NONNEGATIVE),
    **dict.fromkeys(("sigmoid", "nn.softmax"), _UNIT),
    **dict.fromkeys(("tanh", "erf", "sin", "cos", "sign"), _SIGNED_UNIT),
    "zeros": Bounds(0.0, 0.0),
    "zeros_like": Bounds(0.0, 0.0),
    "ones": Bounds(1.0, 1.0),
    "ones_like": Bounds(1.0, 1.0),
    "nn.log_softmax": Bounds(high=0.0),
}
# Moves give elements of their operands back, and so do a maximum and an average over an axis.
CHOOSES = frozenset(
    f"relax.{name}"
    for name in (
        *("reshape", "permute_dims", "squeeze", "expand_dims", "flatten", "broadcast_to", "flip"),
        *("strided_slice", "concat", "stack", "repeat", "tile", "max", "min", "mean", "full_like"),
    )
)
FILLS = frozenset(
    f"relax.{name}" for name in ("full", "full_like", "zeros", "ones", "zeros_like", "ones_like")
)
_INCREASING: dict[str, Callable[[float], float]] = {
    "relax.exp": lambda x: math.exp(min(x, 709.0)) if x != math.inf else x,
    "relax.sqrt": lambda x: math.sqrt(max(x, 0.0)),
    "relax.nn.relu": lambda x: max(x, 0.0),
    "relax.floor": lambda x: math.floor(x) if math.isfinite(x) else x,
    "relax.ceil": lambda x: math.ceil(x) if math.isfinite(x) else x,
}


def bounds_of(head: Head, ty: relax.TensorType, operands: Sequence[tuple[int, Bounds]]) -> Bounds:
    """Bound what an operator computes.

    Parameters
    ----------
    ty : relax.TensorType
        Of its result; integers wrap around, so little is known of what arithmetic makes of them.
    operands : sequence of (int, Bounds)
        Numbers that tell them apart, and their bounds.

    Returns
    -------
    Bounds
        Of all elements that are no NaN.
    """
    name, dtype = head.name, str(ty.dtype)
    given = [bounds for _, bounds in operands]
    is_sum = name == "relax.mean" and "float" not in dtype  # which wraps around before
    if name in CHOOSES and not is_sum:
        return _all(given)
    if name == "relax.where":
        return _all(given[1:])
    if name == "relax.full":
        return given[0]
    if name in ("relax.maximum", "relax.minimum"):
        choose = max if name == "relax.maximum" else min
        return Bounds(choose(b.low for b in given), choose(b.high for b in given))
    if name == "relax.clip" and head.call is not None:
        return _clip(given[0], head.call.args[1:])
    if "float" in dtype:
        return _floating(name, operands)
    return NONNEGATIVE if dtype.startswith("uint") or dtype == "bool" else ANY


def bounds_of_value(value: np.ndarray) -> Bounds:
    """Bound a constant."""
    if not value.size:
        return ANY
    wide = value.astype(np.float64)
    low, high = float(wide.min()), float(wide.max())
    is_exact = value.dtype.kind not in "iu" or max(abs(low), abs(high)) < 2.0**53
    return Bounds(low, high) if is_exact and low <= high else ANY  # neither is so of a NaN


def _floating(name: str, operands: Sequence[tuple[int, Bounds]]) -> Bounds:
    known = _RANGES.get(name.removeprefix("relax."), ANY)
    given = [bounds for _, bounds in operands]
    if name in _INCREASING:
        function = _INCREASING[name]
        return Bounds(function(given[0].low), function(given[0].high))
    if name == "relax.astype":
        return given[0]
    if name == "relax.negative":
        return Bounds(-given[0].high, -given[0].low)
    has_both = len(operands) == 2  # an operand may be an extent, which is none of these
    if name == "relax.multiply" and has_both and operands[0][0] == operands[1][0]:
        return NONNEGATIVE
    arithmetic = _ARITHMETIC.get(name) if has_both else None
    if arithmetic is not None:
        first, second = given
        return arithmetic(first, second)
    is_kept = name in ("relax.sum", "relax.prod", "relax.cumsum", "relax.power")
    if is_kept and given[0].low >= 0:
        return NONNEGATIVE
    return known


def _add(a: Bounds, b: Bounds) -> Bounds:
    return Bounds(_known(a.low + b.low, -math.inf), _known(a.high + b.high, math.inf))


def _subtract(a: Bounds, b: Bounds) -> Bounds:
    return _add(a, Bounds(-b.high, -b.low))


def _multiply(a: Bounds, b: Bounds) -> Bounds:
    ends = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]  # of what is finite
    return Bounds(min(ends), max(ends))


def _divide(a: Bounds, b: Bounds) -> Bounds:
    if b.low < 0:
        return ANY
    return Bounds(0.0 if a.low >= 0 else -math.inf, 0.0 if a.high <= 0 else math.inf)


_ARITHMETIC = {
    "relax.add": _add,
    "relax.subtract": _subtract,
    "relax.multiply": _multiply,
    "relax.divide": _divide,
}


def _clip(bounds: Bounds, ends: Sequence[object]) -> Bounds:
    if not all(isinstance(end, tirx.IntImm | tirx.FloatImm) for end in ends):
        return ANY
    low, high = (float(end.value) for end in ends)  # type: ignore[attr-defined]
    return Bounds(min(max(bounds.low, low), high), min(max(bounds.high, low), high))


def _all(given: Sequence[Bounds]) -> Bounds:
    found = given[0]
    for bounds in given[1:]:
        found = found.hull(bounds)
    return found


def _known(bound: float, otherwise: float) -> float:
    return otherwise if math.isnan(bound) else bound
