"""How far results are from a reference, in one figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor


def error(got: Sequence[Any], expected: Sequence[Tensor]) -> float:
    """Return the largest difference over an output's largest value, of all outputs.

    Infinite where numbers, shapes or places of infinities and NaN differ; integers and booleans
    differ by one for each.
    """
    if len(got) < len(expected):
        return float("inf")
    worst = 0.0
    for mine, theirs in zip(got, expected, strict=False):
        ours = np.asarray(mine).astype("float64")
        right = theirs.double().numpy()
        if ours.shape != right.shape or not right.size:
            if ours.shape != right.shape:
                return float("inf")
            continue
        finite = np.isfinite(right)
        if not np.array_equal(finite, np.isfinite(ours)):
            return float("inf")
        apart = np.abs(ours - right, where=finite, out=np.zeros_like(right)).max()
        scale = np.abs(right, where=finite, out=np.zeros_like(right)).max()
        worst = max(worst, float(apart / scale) if scale else float(apart))
    return worst
