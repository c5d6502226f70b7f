"""Whether results of a half type are float64's, rounded."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tvm_fusion.device import parse

from .magnitudes import HALVES

# Units in the last place: one for the rounding of the result, one for a function of float32 that
# is correct to half a unit of the half type at worst.
ULPS = 2.0
# Sums in another order, functions of another library: the error of float32 is taken so many times.
OF_FLOAT32 = 16.0
# So many times a framework's own error is clearly worse than it.
OF_PEER = 4.0


def difference(
    found: Sequence[Any], exact: Sequence[Any], single: Sequence[Any]
) -> tuple[str, str]:
    """Say how results differ from exact ones beyond rounding.

    Parameters
    ----------
    found : sequence of numpy.ndarray
        Results; those of half types are compared as such, others exactly.
    exact, single : sequence of numpy.ndarray
        The same computed in float64, and in float32, of the same inputs.

    Returns
    -------
    tuple of str
        What is wrong, and what is of float32's own making: where it overflows, and float64 does
        not. Empty where there is nothing.
    """
    if len(found) != len(exact):
        return f"{len(found)} results instead of {len(exact)}", ""
    wrong, noted = "", ""
    for place, results in enumerate(zip(found, exact, single, strict=True)):
        text, note = _differs(*map(np.asarray, results))
        wrong = wrong or (text and f"result {place}: {text}")
        noted = noted or note
    return wrong, noted


def is_worse(found: Sequence[Any], peer: Sequence[Any], exact: Sequence[Any]) -> bool:
    """Whether results are clearly further off than a peer's, or infinite where those are not."""
    for results in zip(found, peer, exact, strict=True):
        x, p, y = (np.asarray(v).astype(np.float64) for v in results)
        known = np.isfinite(y)
        with np.errstate(all="ignore"):
            ours, theirs = (np.where(known, np.abs(v - y), 0.0) for v in (x, p))
        ours, theirs = (np.nan_to_num(v, nan=np.inf, posinf=np.inf) for v in (ours, theirs))
        lost = np.isinf(ours) & np.isfinite(theirs)
        if lost.any() or ours.max(initial=0.0) > OF_PEER * theirs.max(initial=0.0):
            return True
    return False


def among_equals(found: Any, exact: Any, x: Any) -> Any:
    """Take places for the exact ones where they name equal elements of a tensor, on some axis."""
    found, exact, x = map(np.asarray, (found, exact, x))
    if found.dtype.kind != "i" or found.shape != exact.shape or not found.size:
        return exact
    for axis in range(x.ndim):
        ours, theirs = (
            np.expand_dims(v, axis) if v.ndim == x.ndim - 1 else v for v in (found, exact)
        )
        fits = ours.ndim == x.ndim and all(
            n == m for a, (n, m) in enumerate(zip(ours.shape, x.shape, strict=True)) if a != axis
        )
        if not fits or min(ours.min(), theirs.min()) < 0:
            continue
        if max(ours.max(), theirs.max()) >= x.shape[axis]:
            continue
        if (np.take_along_axis(x, ours, axis) == np.take_along_axis(x, theirs, axis)).all():
            return found
    return exact


def ulp(exact: np.ndarray, dtype: str) -> np.ndarray:
    """Return the distance of neighbours in a half type at float64 numbers."""
    info = ml_dtypes.finfo(HALVES[dtype])
    _, exponent = np.frexp(np.where(np.isfinite(exact), np.abs(exact), 0))
    lowest = np.log2(float(info.smallest_subnormal))
    return np.exp2(np.maximum(exponent - 1 - info.nmant, lowest))


def _flushed(dtype: str) -> float:
    """Return the smallest number that is not zero after rounding on this CPU, or zero for all.

    The instruction that rounds to bfloat16 makes zeros of subnormal numbers.
    """
    flushes = dtype == "bfloat16" and "avx512bf16" in parse("cpu").device.features
    return float(ml_dtypes.finfo(HALVES[dtype]).tiny) if flushes else 0.0


def _differs(found: np.ndarray, exact: np.ndarray, single: np.ndarray) -> tuple[str, str]:
    if found.shape != exact.shape:
        return f"shape {list(found.shape)} instead of {list(exact.shape)}", ""
    name = found.dtype.name
    if name not in HALVES:
        return _plain(found, exact, single)
    info = ml_dtypes.finfo(HALVES[name])
    x, y, z = (v.astype(np.float64) for v in (found, exact, single))
    with np.errstate(all="ignore"):
        unit = ulp(y, name)
        apart = np.where(np.isfinite(y) & np.isfinite(z), np.abs(y - z), 0.0)
        allowed = ULPS * unit + OF_FLOAT32 * apart + apart.max(initial=0.0) + _flushed(name)
        beyond = np.abs(y) + allowed >= float(info.max) + unit / 2  # rounds to infinity, or may
        near = np.abs(x - y) <= allowed
        infinite = beyond & np.isinf(x) & (np.sign(x) == np.sign(y))
        same = (np.isnan(x) & np.isnan(y)) | (x == y)
        # At a pole the exact value is that of pi's rounding, of which float32 has no digit.
        pole = ~np.isfinite(x) & np.isfinite(z) & (np.abs(y - z) >= np.abs(y) / 2)
        right = near | infinite | same | pole
        # onnx's reference takes some statistics in float32 whatever it is given.
        known = np.isfinite(y) | (np.isnan(y) & (name == "bfloat16"))
        theirs = ~right & known & ~np.isfinite(z)
    bad = ~right & ~theirs
    return _worst(bad, x, y), _worst(theirs, x, y)


def _plain(found: np.ndarray, exact: np.ndarray, single: np.ndarray) -> tuple[str, str]:
    """Compare integers and truth values exactly, other floats to float32's precision."""
    if found.dtype.kind in "biu":
        bad = (found != exact) & (found != single)
        return (f"{int(bad.sum())} of {bad.size} {found.dtype} differ" if bad.any() else ""), ""
    x, y, z = (v.astype(np.float64) for v in (found, exact, single))
    with np.errstate(all="ignore"):
        allowed = 1e-5 * np.abs(y) + OF_FLOAT32 * np.abs(y - z) + 1e-40
        right = (np.abs(x - y) <= allowed) | (np.isnan(x) & np.isnan(y)) | (x == y)
        theirs = ~right & ~np.isfinite(z)
    return _worst(~right & ~theirs, x, y), _worst(theirs, x, y)


def _worst(bad: np.ndarray, x: np.ndarray, y: np.ndarray) -> str:
    if not bad.any():
        return ""
    with np.errstate(all="ignore"):
        error = np.abs(x - y) / np.maximum(np.abs(y), 1e-300)
    at = int(np.where(bad, np.nan_to_num(error, nan=np.inf), -1).argmax())
    count = f"{int(bad.sum())} of {bad.size}"
    return f"{count}, {x.flat[at]:.6g} instead of {y.flat[at]:.6g}"
