"""PyTorch's tensors in and out of a call, in memory that both sides share. Imports no PyTorch."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
import tvm_ffi

from .tensors import to_numpy


def torch_of(values: Iterable[Any]) -> Any:
    """Return the module ``torch`` if one of several values is its tensor, and None otherwise."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    for value in values:  # any() of a generator takes longer
        if isinstance(value, torch.Tensor):
            return torch
    return None


def hands_out_tensors(torch: Any) -> bool:
    """Whether TVM's functions take this PyTorch's tensors, and return such, without Python."""
    return hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def readable_tensors(torch: Any) -> Callable[[Any, Any], bool]:
    """Make a function that tells whether a value is a tensor on the CPU that kernels can read.

    Kernels read it where it lies: contiguous, aligned to its elements, not empty, negated nowhere.
    """
    types, strided = (torch.Tensor, torch.nn.Parameter), torch.strided

    def is_readable(tensor: Any, dtype: Any) -> bool:
        return (
            type(tensor) in types
            and tensor.dtype is dtype
            and tensor.is_cpu
            and tensor.layout is strided
            and not tensor.requires_grad
            and not tensor.is_neg()
            and tensor.is_contiguous()
            and tensor.numel() != 0
            and tensor.data_ptr() % dtype.itemsize == 0
        )

    return is_readable


def from_torch(torch: Any, value: Any) -> Any:
    """Take a tensor as an array over its memory: numpy's where numpy has the type.

    What is no tensor stays as it is. A tensor that is conjugated or negated only when it is read is
    copied.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if value.requires_grad:
        value = value.detach()
    if value.is_neg() or value.is_conj():
        value = value.resolve_neg().resolve_conj()
    if value.device.type == "cpu" and value.layout is torch.strided:
        try:
            return value.numpy()
        except (TypeError, RuntimeError):  # bfloat16, float8, subclasses
            return value
    return value


@contextlib.contextmanager
def in_order(torch: Any, device: Any) -> Iterator[None]:
    """Order a GPU's kernels with PyTorch's current stream.

    They run on the default stream, unless the caller has chosen that one for TVM, or captures it:
    another stream would be none of the graph's.
    """
    stream = torch.cuda.current_stream(device.index)
    default = torch.cuda.default_stream(device.index)
    if stream == default or stream.cuda_stream == tvm_ffi.get_raw_stream(device):
        yield
        return
    if torch.cuda.is_current_stream_capturing():
        with tvm_ffi.use_raw_stream(device, stream.cuda_stream):
            yield
        return
    default.wait_stream(stream)
    yield
    stream.wait_stream(default)


def to_torch(torch: Any, value: Any) -> Any:
    """Make a tensor of a result, over its memory."""
    if isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, np.ndarray):
        if value.device.type == "cpu":
            return to_torch(torch, to_numpy(value))
        return torch.from_dlpack(value)
    if value.dtype.type.__module__ == "numpy":
        return torch.from_numpy(value)
    bits = torch.from_numpy(value.view(f"i{value.itemsize}"))
    return bits.view(getattr(torch, value.dtype.name))
