"""When laws hold: refusals that several of them share."""

from collections.abc import Callable
from typing import ClassVar

import ml_dtypes
import numpy as np

from ...core.constants.numpy_types import numpy_dtype
from ...core.contract.template import Refusal
from ..egraph.facts.extents import is_float
from ..egraph.law import Law, Match
from ..nonfinite import INFINITE, NONE, NonFinite


class OnFloats(Law):
    """A law that integers break: they wrap around, and divide towards zero."""

    def check(self, match: Match) -> Refusal | None:
        """Refuse integers."""
        return floating(match)


def floating(match: Match) -> Refusal | None:
    """Refuse where the result is not of floating point."""
    if is_float(match.graph[match.root].type):
        return None
    return Refusal("integers", "It does not hold for integers.")


def signed(match: Match) -> Refusal | None:
    """Refuse unsigned integers, whose negatives are large."""
    if str(match.graph[match.root].type.dtype).startswith("uint"):
        return Refusal("unsigned", "It does not hold for unsigned integers.")
    return None


def without_nan(match: Match, *names: str) -> Refusal | None:
    """Refuse where a tensor may hold NaN: one of floating point that is no known constant."""
    for name in names:
        if is_float(match.type(name)):
            value = match.value(name)
            if value is None or np.isnan(value.astype(np.float64)).any():
                return Refusal("may_be_nan", f"The tensor {name} may hold NaN.")
    return None


def nonnegative(match: Match, *names: str) -> Refusal | None:
    """Refuse where a tensor may be negative."""
    for name in names:
        if match.graph[match.number(name)].bounds.low < 0:
            return Refusal("may_be_negative", f"The tensor {name} may be negative.")
    return None


def representable(match: Match, compute: Callable[..., np.ndarray], *names: str) -> Refusal | None:
    """Refuse where a constant that is computed from others cannot be told, or is out of range.

    Parameters
    ----------
    compute
        Takes their values, in float64.

    Returns
    -------
    Refusal or None
        None where all elements are finite in the dtype and lose no digits to underflow.
    """
    found = [match.value(name) for name in names]
    values = [v.astype(np.float64) for v in found if v is not None]
    if len(values) < len(names):
        return Refusal("unknown_value", "The constants are too large for their values to be known.")
    dtype = numpy_dtype(str(match.type(names[0]).dtype))
    if dtype.kind in "iub":
        return None
    info = ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        result = np.abs(compute(*values))
    if not (result <= float(info.max)).all():
        return Refusal("overflow", "A constant would overflow.")
    if ((result < float(info.tiny)) & (result > 0)).any():
        return Refusal("underflow", "A constant would underflow.")
    return None


def without_rounding(match: Match, *names: str) -> Refusal | None:
    """Refuse a constant that is added to round: ``x + 2**23 - 2**23``.

    Numbers next to one of ``2**22`` are whole or half ones in float32; models that add and subtract
    such a constant mean the rounding.
    """
    for name in names:
        value = match.value(name)
        if value is None or not is_float(match.type(name)):
            continue
        mantissa = ml_dtypes.finfo(numpy_dtype(str(match.type(name).dtype))).nmant
        if (np.abs(value.astype(np.float64)) >= 2.0 ** (mantissa - 1)).any():
            return Refusal("rounds", f"The constant {name} is so large that adding it rounds.")
    return None


def sum_overflows(match: Match) -> NonFinite:
    """Tell of constants ``k`` and ``l`` with which a sum may overflow: none that rounding hides."""
    for name in "kl":
        value = match.value(name)
        if value is None:
            return INFINITE
        info = ml_dtypes.finfo(numpy_dtype(str(match.type(name).dtype)))
        if not (np.abs(value.astype(np.float64)) <= float(info.max) * float(info.eps) / 4).all():
            return INFINITE
    return NONE


def all_of(*refusals: Refusal | None) -> Refusal | None:
    """Return the first refusal."""
    return next((refusal for refusal in refusals if refusal is not None), None)


def may_cancel(match: Match, names: str) -> Refusal | None:
    """Refuse to multiply a factor into ``a - b``, or ``a + b``, whose terms are large and alike.

    Of rows with a mean of 1,000 deviations, ``(x - m) * (x - m)`` has six digits in float32, and
    ``x * x - 2 * m * x + m * m`` none.
    """
    graph = match.graph
    terms = [match.number(name) for name in names]
    if not is_float(graph[match.root].type) or any(graph[n].is_constant for n in terms):
        return None
    heads = {node.head.name for n in (match.root, *terms) for node in graph[n].nodes}
    is_difference = any(
        operand.head.name == "relax.subtract"
        for node in graph[match.root].nodes
        for n in node.operands
        for operand in graph[n].nodes
    )
    if is_difference or "relax.negative" in heads:
        return Refusal("may_cancel", "The terms of the difference may be large and nearly equal.")
    return None


class Careful(Law):
    """A law of a common factor, which from right to left asks whether terms may cancel."""

    terms: ClassVar[str] = "ab"

    def backwards(self) -> Law | None:
        """Return the law from right to left, where nothing cancels."""
        found = super().backwards()
        if found is not None:
            check = found.check
            found.check = lambda match: (  # type: ignore[method-assign]
                may_cancel(match, self.terms) or check(match)
            )
        return found
