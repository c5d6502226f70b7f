"""Both sides of a law on NaN, infinities, zeros, the largest and the smallest numbers."""

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from tests.rewrite.laws.law_numerics import FACTOR, Program, inputs, mixed
from tvm_fusion.rewrite.egraph.head import Head, Heads
from tvm_fusion.rewrite.nonfinite import MINUS, NAN, NONE, PLUS, ZERO, NonFinite

TRIALS = 4
_SHARE = 0.8  # of elements that are special


def special_inputs(
    specs: Mapping[Head, str], heads: Heads, dtype: str, shape_n: int, seed: int
) -> dict[Head, np.ndarray]:
    """Draw what leaves are; those that have a range of their own keep to it."""
    drawn = inputs(specs, heads, dtype, shape_n, is_large=False, seed=seed)
    return mixed(drawn, specs, dtype, {"f": _specials, "V": _specials}, _SHARE, seed)


def _specials(kind: np.dtype) -> np.ndarray:
    info = ml_dtypes.finfo(kind)
    largest, tiny = float(info.max), float(info.tiny)
    exponent = np.log(largest)
    sizes = [0.0, 0.5, 1.0, 2.0, tiny / 4, tiny, tiny**0.5 * 0.7, largest**0.5 * 1.5]
    sizes += [0.6 * largest, largest, np.inf, 0.99 * exponent, 1.2 * exponent, 2.1 * exponent]
    return np.asarray([np.nan, *sizes, *(-size for size in sizes)])


def changes(
    left: Program, right: Program, leaves: Mapping[Head, np.ndarray], seed: int
) -> NonFinite:
    """Compare two forms: where the left one is finite, the right one has to be the same.

    The tolerance is what rounding each operand and result once could change, underflow included;
    where that decides whether the left side overflows, nothing is compared.

    Returns
    -------
    NonFinite
        Values of the left side, at elements where the right side has another that is no rounding.
    """
    old, new = left.run(leaves)[-1], right.run(leaves)[-1]
    if old.dtype.kind not in "fV":
        np.testing.assert_array_equal(new, old)
        return NONE
    info = ml_dtypes.finfo(old.dtype)
    before, after = old.astype(np.float64), new.astype(np.float64)
    rng = np.random.default_rng(seed)
    exact = left.run_with_overflow(leaves)[-1]
    spread, is_stable = np.zeros(before.shape), np.isfinite(exact)
    with np.errstate(all="ignore"):
        for _ in range(TRIALS):
            moved = left.run_with_overflow(leaves, rng)[-1]
            spread = np.fmax(spread, np.abs(moved - exact))
            is_stable &= np.isfinite(moved)
        tolerance = 2 * FACTOR * (spread + float(info.eps) * np.abs(exact)) + 2 * float(info.tiny)
        wrong = np.isfinite(before) & is_stable & ~(np.abs(after - before) <= tolerance)
    if wrong.any():
        i = tuple(int(k) for k in np.argwhere(wrong)[0])
        raise AssertionError(f"{before[i]:g} became {after[i]:g} at {i}")
    found = NONE
    with np.errstate(all="ignore"):
        differs = ~((before == after) | (np.isnan(before) & np.isnan(after)))
    if ((before == 0) & (after == 0) & (np.signbit(before) != np.signbit(after))).any():
        found |= ZERO
    for kind, where in (
        (NAN, np.isnan(before)),
        (PLUS, before == np.inf),
        (MINUS, before == -np.inf),
    ):
        if (where & differs).any():
            found |= kind
    return found
