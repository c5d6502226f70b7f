"""Element types by name, as converters of both frameworks and passes ask about them."""

from __future__ import annotations

from typing import Any

from tvm import relax

HALF = ("float16", "bfloat16")


def dtype_of(value: Any) -> str:
    """Return the dtype of a tensor expression, an empty string for anything else."""
    return str(value.ty.dtype.dtype) if isinstance(value.ty, relax.TensorType) else ""


def is_float(dtype: str) -> bool:
    """Tell whether a dtype is one of floating point."""
    return "float" in dtype


def is_integer(dtype: str) -> bool:
    """Tell whether a dtype is an integer type; bool is none."""
    return dtype.startswith(("int", "uint"))


def accumulation_dtype(dtype: str) -> str:
    """Return the dtype in which sums of a dtype are taken: float32 for half types."""
    return "float32" if dtype in HALF else dtype
