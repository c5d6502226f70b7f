"""Types of Relax tensors as numpy has them."""

from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, tirx


def result_shape(call: relax.Call) -> tuple[int, ...] | None:
    """Return the static shape of a call's tensor result, or None."""
    ty = call.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    extents = list(ty.shape)
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return tuple(int(extent) for extent in extents)


def result_dtype(call: relax.Call) -> np.dtype:
    """Return the dtype of a call's tensor result."""
    return numpy_dtype(call.ty.dtype.dtype)


def numpy_dtype(name: Any) -> np.dtype:
    """Return the numpy or ml_dtypes dtype of TVM's name for it."""
    return np.dtype(getattr(ml_dtypes, str(name), str(name)))


def array_of(tensor: Any) -> np.ndarray:
    """Return a tensor's elements as an array, without a copy where numpy has their type."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError):  # bfloat16
        return tensor.numpy()


def is_float(array: Any) -> bool:
    """Whether an operand is an array of a floating point type, bfloat16 and float8 included."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "fV"


def wide(array: Any) -> Any:
    """Bring half, single and bfloat16 to float64; leave integers and booleans."""
    return array.astype(np.float64) if is_float(array) else array
