"""Query and compare dtypes and extents of Relax tensors."""

from collections.abc import Sequence
from typing import Any

from tvm import relax

HALF = ("float16", "bfloat16")


def dtype_of(value: Any) -> str:
    """Return the dtype of a tensor expression, an empty string for anything else."""
    ty = getattr(value, "ty", None)
    return str(ty.dtype.dtype) if isinstance(ty, relax.TensorType) and ty.dtype is not None else ""


def is_float(dtype: str) -> bool:
    """Tell whether a dtype is one of floating point."""
    return "float" in dtype


def is_integer(dtype: str) -> bool:
    """Tell whether a dtype is an integer type; bool is none."""
    return dtype.startswith(("int", "uint"))


def accumulation_dtype(dtype: str) -> str:
    """Return the dtype in which sums of a dtype are taken: float32 for half types."""
    return "float32" if dtype in HALF else dtype


def static(extent: Any) -> int | None:
    """Return an extent as an int, None where it is symbolic."""
    if isinstance(extent, int):
        return extent
    value = getattr(extent, "value", None)
    return int(value) if isinstance(value, int) else None


def mismatch(value: Any, dtype: str, shape: Sequence[int | None] | None) -> str | None:
    """Compare the type of a converted tensor with what its framework says.

    Parameters
    ----------
    dtype, shape : str, sequence of (int or None) or None
        As the framework has them; None for what it does not know.

    Returns
    -------
    str or None
        Such as ``float16[?, 3] instead of float32[?, 3]``; None where they agree.
    """
    ty = getattr(value, "ty", None)
    if not isinstance(ty, relax.TensorType):
        return "something other than a tensor"
    own: list[int | None] | None = None
    if ty.shape is not None:
        own = [static(extent) for extent in ty.shape]
    elif ty.ndim >= 0:
        own = [None] * ty.ndim
    own_dtype = dtype if ty.dtype is None else dtype_of(value)
    agree = own is None or shape is None or len(own) == len(shape)
    agree = agree and all(
        None in (a, b) or a == b for a, b in zip(own or (), shape or (), strict=False)
    )
    if agree and own_dtype == dtype:
        return None
    return f"{own_dtype}{_extents(own)} instead of {dtype}{_extents(shape)}"


def _extents(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return ""
    return f"[{', '.join('?' if extent is None else str(extent) for extent in shape)}]"
