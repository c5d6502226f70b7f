"""How far results are from others; imports no TVM."""

from collections.abc import Mapping

import numpy as np

#: By precision, max|a-b| / max|b| that an artifact may differ by, from its storage type's rounding.
TOLERANCE: Mapping[str, float] = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}


def errors(actual: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Compute the error of an array, in float64.

    Returns
    -------
    dict
        ``max_abs_error``: max|a-b|; ``max_rel_error``: that over max|b|, infinite if a value is
        finite in one only; ``std`` of the expected values.
    """
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    same = np.array_equal(actual[~finite], expected[~finite], equal_nan=True)
    error = np.abs(actual[finite] - expected[finite]).max(initial=0.0) if same else np.inf
    error = np.inf if np.isnan(error) else float(error)
    scale = float(np.abs(expected[finite]).max(initial=0.0))
    relative = 0.0 if error == 0 else error / scale if scale else np.inf
    return {
        "max_abs_error": float(error),
        "max_rel_error": float(relative),
        "std": float(expected[finite].std()) if finite.any() else 0.0,
    }
