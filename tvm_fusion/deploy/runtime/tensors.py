"""Arrays to runtime tensors and back, with tvm_ffi and TVM's runtime library alone."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
import tvm_ffi

from ...errors import UserError

ALIGNMENT = 64  # of what is allocated here, and of what devices read: TVM's kAllocAlignment


def as_array(value: Any, dtype: str, what: str) -> np.ndarray | tvm_ffi.Tensor:
    """Take what a caller passes as an array, without copying its data.

    Parameters
    ----------
    value : numpy.ndarray, anything with ``__dlpack__``, Python number or nested list
        Arrays keep the dtype that they have.
    dtype
        For Python's numbers, which have no dtype of their own; a float becomes no integer.
    what
        What to call it in an error, such as ``input 'x'``.

    Raises
    ------
    UserError
        If it is no array, or does not hand out its memory.
    """
    if isinstance(value, (np.ndarray, tvm_ffi.Tensor)):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            return tvm_ffi.from_dlpack(value)
        array = np.asarray(value)
    except Exception as error:  # each framework raises types of its own
        reason = str(error).partition("\n")[0]
        raise UserError(f"{what} is a {type(value).__name__} without usable data ({reason})") from (
            error
        )
    if isinstance(value, (bool, int, float, list, tuple)) and array.dtype.kind in "biuf":
        return array.astype(dtype) if np.can_cast(array.dtype, dtype, "same_kind") else array
    return array


def as_stored(array: Any, dtype: str) -> Any:
    """View an array in the dtype in which the code takes it, of the same bytes; "" is its own."""
    if not dtype:
        return array
    return array.view(dtype) if isinstance(array, np.ndarray) else _reinterpret(array, dtype)


def as_declared(value: Any, dtype: str) -> Any:
    """View a result in the dtype of the signature.

    On a device, types of fewer than 8 bits keep the dtype of their storage.
    """
    if isinstance(value, np.ndarray):
        return value.view(dtype)
    return _reinterpret(value, dtype) if tvm_ffi.dtype(dtype).bits == 8 else value


def to_tensor(
    value: Any,
    device: tvm_ffi.Device,
    what: str = "an array",
    alignment: int | None = ALIGNMENT,
) -> tvm_ffi.Tensor:
    """Turn an array into a tensor on a device, without a copy where memory and alignment allow.

    Parameters
    ----------
    value : numpy.ndarray or tvm_ffi.Tensor
        Any dtype that numpy or ml_dtypes has.
    what
        What to call it in an error.
    alignment
        Bytes that its memory has to be aligned to; ``None`` for those of an element.

    Returns
    -------
    tvm_ffi.Tensor
        Contiguous and aligned.

    Raises
    ------
    UserError
        For strides that cannot be copied away: those of device memory and of bfloat16.
    """
    tensor = _from_numpy(value, alignment) if isinstance(value, np.ndarray) else value
    if not tensor.is_contiguous():
        tensor = _from_numpy(_strided(tensor, what), alignment)
    if tensor.device != device:
        return copy_to(tensor, device)
    if tensor.data_ptr() % (alignment or tensor.dtype.itemsize) == 0:
        return tensor
    return _from_numpy(to_numpy(tensor)) if device.type == "cpu" else copy_to(tensor, device)


def to_numpy(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """Return a contiguous tensor's data as a numpy array: a view if it lies in host memory."""
    dtype = np.dtype(str(tensor.dtype))
    if tensor.device.type != "cpu":
        array = aligned_empty(tuple(tensor.shape), dtype)
        copy = _function("runtime.TVMTensorCopyToBytes")
        copy(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
        return array
    if dtype.kind == "V":
        return np.from_dlpack(_reinterpret(tensor, f"uint{8 * dtype.itemsize}")).view(dtype)
    return np.from_dlpack(tensor)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an array whose memory is aligned for generated code."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def shares_memory(array: Any, tensor: tvm_ffi.Tensor) -> bool:
    """Whether a tensor is a caller's array itself, not a copy of it.

    Parameters
    ----------
    array : numpy.ndarray or anything with ``__dlpack__``
        What :func:`to_tensor` was given.
    tensor
        What it made of it.
    """
    own = as_array(array, "", "an array")
    start = own.ctypes.data if isinstance(own, np.ndarray) else own.data_ptr()
    return start == tensor.data_ptr()


def check_writable(array: Any, what: str) -> None:
    """Check that :func:`write_into` can write to a caller's array.

    Raises
    ------
    UserError
        If it is read-only, or no array.
    """
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise UserError(f"{what} is read-only", "memory that may be written to")
    if not isinstance(array, np.ndarray) and not hasattr(array, "__dlpack__"):
        raise UserError(f"{what} is a {type(array).__name__}", "an array")


def write_into(array: Any, value: Any, what: str) -> None:
    """Copy a result into a caller's array of the same shape and dtype.

    Parameters
    ----------
    what
        What to call the array in an error.

    Raises
    ------
    UserError
        If the array is read-only, or has strides and lies in device memory or holds bfloat16.
    """
    check_writable(array, what)
    value = as_array(value, "", what)
    if isinstance(array, np.ndarray):
        array[...] = to_numpy(value) if isinstance(value, tvm_ffi.Tensor) else value
        return
    target: Any = as_array(array, "", what)
    if target.is_contiguous():
        source = value if isinstance(value, tvm_ffi.Tensor) else _from_numpy(value)
        _function("runtime.TVMTensorCopyFromTo")(source, target)
    else:
        write_into(_strided(target, what), value, what)


def _from_numpy(array: np.ndarray, alignment: int | None = None) -> tvm_ffi.Tensor:
    if not array.size:  # numpy exports strides of 0, which generated code takes for broadcasting
        allocate = _function("runtime.TVMTensorAllocWithScope")
        dtype = tvm_ffi.dtype(str(array.dtype))
        return allocate(tvm_ffi.Shape(array.shape), dtype, tvm_ffi.device("cpu", 0), None)
    if not array.flags.carray or (alignment and array.ctypes.data % alignment):
        aligned = aligned_empty(array.shape, array.dtype)
        aligned[...] = array
        array = aligned
    if array.dtype.kind != "V":
        return tvm_ffi.from_dlpack(array)
    # numpy exports no type of ml_dtypes, so the bits travel as integers.
    return _reinterpret(tvm_ffi.from_dlpack(array.view(f"u{array.itemsize}")), str(array.dtype))


def _strided(tensor: tvm_ffi.Tensor, what: str) -> np.ndarray:
    """View a tensor that is not contiguous, which numpy can for its own dtypes on the host."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError) as error:
        raise UserError(f"{what} is not contiguous", "contiguous memory", "copy it") from error


def _reinterpret(tensor: tvm_ffi.Tensor, dtype: str) -> tvm_ffi.Tensor:
    """View the same memory as another dtype of the same width."""
    return view(tensor, tensor.shape, dtype)


def view(
    tensor: tvm_ffi.Tensor, shape: Sequence[int], dtype: str, offset: int = 0
) -> tvm_ffi.Tensor:
    """View memory of a tensor, from a byte on, as a contiguous one of another shape and dtype."""
    made = _function("runtime.TVMTensorCreateView")
    return made(tensor, tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), offset)


def copy_to(tensor: tvm_ffi.Tensor, device: tvm_ffi.Device) -> tvm_ffi.Tensor:
    """Copy a contiguous tensor into new memory on a device."""
    allocate = _function("runtime.TVMTensorAllocWithScope")
    result = allocate(tvm_ffi.Shape(tensor.shape), tensor.dtype, device, None)
    _function("runtime.TVMTensorCopyFromTo")(tensor, result)
    return result


def _function(name: str) -> Any:
    return tvm_ffi.get_global_func(name)
