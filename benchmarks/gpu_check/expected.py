"""What a function must return, stored compactly: values at some positions, totals over all.

Of an output of more than :data:`SAMPLES` elements so many are stored, spread evenly; the sum over
all elements, their largest magnitude and the number that is not finite speak for the others.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

SAMPLES = 4096
_GOLDEN = (math.sqrt(5) - 1) / 2


def positions(size: int) -> np.ndarray:
    """Choose positions in a flat array of ``size`` elements: all, or steps by the golden ratio."""
    if size <= SAMPLES:
        return np.arange(size)
    step = int(size * _GOLDEN)
    while math.gcd(step, size) != 1:  # then no position comes twice
        step += 1
    return np.arange(SAMPLES, dtype=np.int64) * step % size


def store(exact: np.ndarray, dtype: str, tolerance: Any) -> dict[str, Any]:
    """Keep what is needed to check an output.

    Parameters
    ----------
    exact
        Of any shape; float64, or integers or booleans.
    dtype
        That the output has.
    tolerance : float or numpy.ndarray
        Largest absolute error, of all elements or of each.

    Returns
    -------
    dict
        Plain data, and the arrays ``values`` and ``tolerances``.
    """
    flat, chosen = exact.reshape(-1), positions(exact.size)
    allowed = np.broadcast_to(np.asarray(tolerance, "float64"), exact.shape).reshape(-1)
    wide = flat.astype("float64")
    finite = np.isfinite(wide)
    kept, slack = wide[finite], allowed[finite]
    is_float = flat.dtype.kind == "f"
    each = isinstance(tolerance, np.ndarray) and tolerance.ndim > 0
    return {
        "shape": list(exact.shape),
        "dtype": dtype,
        "finite": int(finite.sum()),
        "sum": float(kept.sum()),
        "sum_tolerance": float(slack.sum()),
        "largest": float(np.abs(kept).max(initial=0)),
        "largest_tolerance": float(slack.max(initial=0)),
        "values": flat[chosen].astype("float32" if is_float else "int64"),
        # Storing float32 rounds; that must not cost an exact result its pass.
        "tolerances": np.asarray(allowed[chosen] if each else allowed[:1], "float32"),
    }


def compare(actual: np.ndarray, wanted: Mapping[str, Any]) -> tuple[str | None, float]:
    """Compare an output with what :func:`store` kept.

    Returns
    -------
    str or None
        What is wrong, or None.
    float
        Largest error in units of its tolerance; 0 or infinity for exact outputs.
    """
    shape, dtype = tuple(wanted["shape"]), wanted["dtype"]
    if actual.shape != shape or str(actual.dtype) != dtype:
        return f"{actual.dtype}{actual.shape} instead of {dtype}{shape}", math.inf
    wide = actual.reshape(-1).astype("float64")
    finite = np.isfinite(wide)
    if int(finite.sum()) != wanted["finite"]:
        return f"{int(finite.sum())} finite elements instead of {wanted['finite']}", math.inf
    problem, worst = _compare_samples(
        wide[positions(actual.size)], wanted, actual.dtype.kind == "f"
    )
    if problem:
        return problem, worst
    kept = wide[finite]
    found = {"sum": float(kept.sum()), "largest": float(np.abs(kept).max(initial=0))}
    for name, total in found.items():
        rounding = 1e-12 * max(1.0, wanted["largest"]) * kept.size
        if abs(total - wanted[name]) > wanted[f"{name}_tolerance"] + rounding:
            return f"{name} over all elements {total:.9g} instead of {wanted[name]:.9g}", worst
    return None, worst


def _compare_samples(
    found: np.ndarray, wanted: Mapping[str, Any], is_float: bool
) -> tuple[str | None, float]:
    values = wanted["values"].astype("float64")
    with np.errstate(invalid="ignore"):
        error = np.where(_same(found, values), 0.0, np.abs(found - values))
    # What is stored was rounded to float32.
    stored = np.where(np.isfinite(values), np.abs(values), 0) * (2.0**-24 * is_float)
    allowed = wanted["tolerances"].astype("float64") + stored
    units = np.where(error == 0, 0.0, error / np.maximum(allowed, 1e-300))
    units = np.where(np.isnan(units), np.inf, units)
    worst = float(units.max(initial=0))
    if worst <= 1:
        return None, worst
    at = int(np.argmax(units))
    size = int(np.prod(wanted["shape"]))
    place = [int(i) for i in np.unravel_index(int(positions(size)[at]), wanted["shape"])]
    return (
        f"{int((units > 1).sum())} of {units.size} elements looked at, at {place} "
        f"{found[at]:.9g} instead of {values[at]:.9g}"
    ), worst


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one == other) | (np.isnan(one) & np.isnan(other))
