"""Arrays to runtime tensors and back, with tvm_ffi and TVM's runtime library alone."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
import tvm_ffi

ALIGNMENT = 64  # generated code reads whole vectors: TVM's kAllocAlignment


def to_tensor(value: Any, device: tvm_ffi.Device) -> tvm_ffi.Tensor:
    """Turn an array into a tensor on a device, without a copy where memory and alignment allow.

    Parameters
    ----------
    value : numpy.ndarray, tvm_ffi.Tensor, or anything with ``__dlpack__``
        Any dtype that numpy or ml_dtypes has.
    device : tvm_ffi.Device
        Where the kernels run.

    Returns
    -------
    tvm_ffi.Tensor
        Contiguous and aligned to 64 bytes.
    """
    if isinstance(value, np.ndarray):
        tensor = _from_numpy(value)
    elif isinstance(value, tvm_ffi.Tensor):
        tensor = value
    else:
        tensor = tvm_ffi.from_dlpack(value)
    if tensor.device != device:
        return _copy_to(tensor, device)
    if tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    if device.type != "cpu":
        return _copy_to(tensor, device)
    return _from_numpy(to_numpy(tensor).copy())


def to_numpy(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """Give a tensor's data as a numpy array: a view if it lies in host memory, else a copy."""
    dtype = np.dtype(str(tensor.dtype))
    if tensor.device.type != "cpu" or dtype == np.dtype("bfloat16"):
        array = aligned_empty(tuple(tensor.shape), dtype)
        _function("runtime.TVMTensorCopyToBytes")(tensor, array.ctypes.data, array.nbytes)
        return array
    return np.from_dlpack(tensor)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an array whose memory is aligned for generated code."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def write_into(array: Any, value: Any) -> None:
    """Copy a result into a caller's array of the same shape and dtype.

    Parameters
    ----------
    array : numpy.ndarray or anything with ``__dlpack__``
        Where to.
    value : numpy.ndarray or tvm_ffi.Tensor
        What.
    """
    if isinstance(array, np.ndarray):
        array[...] = to_numpy(value) if isinstance(value, tvm_ffi.Tensor) else value
        return
    source = value if isinstance(value, tvm_ffi.Tensor) else _from_numpy(value)
    _function("runtime.TVMTensorCopyFromTo")(source, tvm_ffi.from_dlpack(array))


def _from_numpy(array: np.ndarray) -> tvm_ffi.Tensor:
    if array.dtype == np.dtype("bfloat16"):  # DLPack export is numpy's, which does not know it
        tensor = _allocate(array.shape, "bfloat16", tvm_ffi.device("cpu", 0))
        array = np.ascontiguousarray(array)
        _function("runtime.TVMTensorCopyFromBytes")(tensor, array.ctypes.data, array.nbytes)
        return tensor
    usable = array.flags.c_contiguous and array.flags.writeable
    if not usable or array.ctypes.data % ALIGNMENT:
        aligned = aligned_empty(array.shape, array.dtype)
        aligned[...] = array
        array = aligned
    return tvm_ffi.from_dlpack(array)


def _copy_to(tensor: tvm_ffi.Tensor, device: tvm_ffi.Device) -> tvm_ffi.Tensor:
    result = _allocate(tuple(tensor.shape), str(tensor.dtype), device)
    _function("runtime.TVMTensorCopyFromTo")(tensor, result)
    return result


def _allocate(shape: tuple[int, ...], dtype: str, device: tvm_ffi.Device) -> tvm_ffi.Tensor:
    allocate = _function("runtime.TVMTensorAllocWithScope")
    return allocate(tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), device, None)


def _function(name: str) -> Any:
    return tvm_ffi.get_global_func(name)
