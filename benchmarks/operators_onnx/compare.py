"""Whether a result is the expected one: number, dtype, shape, values and where NaN stands."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


def array(value: Any) -> Any:
    """Return a sample's value as an array; other kinds (sequences, None) as they are."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if value is None or isinstance(value, (list, dict)) else np.asarray(value)


def difference(
    found: Sequence[np.ndarray], expected: Sequence[Any], rtol: float, atol: float
) -> str:
    """Say in a few words how results differ from the expected ones, nothing where they do not.

    Parameters
    ----------
    found, expected : sequence of numpy.ndarray
        Results in the order of the model's outputs.
    rtol, atol
        Tolerances; those of types narrower than float32 are never below their own precision.
    """
    if len(found) != len(expected):
        return f"{len(found)} outputs instead of {len(expected)}"
    for i, (one, other) in enumerate(zip(found, map(array, expected), strict=True)):
        text = _differs(np.asarray(one), other, rtol, atol)
        if text:
            return f"output {i}: {text}"
    return ""


def _differs(found: np.ndarray, expected: Any, rtol: float, atol: float) -> str:
    if not isinstance(expected, np.ndarray):
        return f"a tensor instead of {type(expected).__name__}"
    if found.dtype.name != expected.dtype.name:
        return f"{found.dtype.name} instead of {expected.dtype.name}"
    if found.shape != expected.shape:
        return f"shape {list(found.shape)} instead of {list(expected.shape)}"
    if expected.dtype.kind in "biu":
        wrong = found != expected
    else:
        one, other = found.astype("float64"), expected.astype("float64")
        if (np.isnan(one) != np.isnan(other)).any():
            return "NaN elsewhere"
        precision = {"float16": 2e-3, "bfloat16": 2e-2}.get(expected.dtype.name, 0.0)
        with np.errstate(all="ignore"):
            close = np.isclose(one, other, max(rtol, precision), max(atol, precision), True)
        wrong = ~close
    count = int(np.count_nonzero(wrong))
    return f"{count} of {wrong.size} values" if count else ""
