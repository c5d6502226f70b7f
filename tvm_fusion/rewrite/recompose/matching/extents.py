"""Shapes of tensors, symbolic extents included, and when two are the same."""

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import relax, tirx


def known_shape(expr: Any) -> list[Any] | None:
    """List the extents of a tensor, symbolic ones included; None where even its rank is open."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return list(ty.shape.values)


def extent(value: Any) -> int | None:
    """Return an extent; None if it is symbolic."""
    if isinstance(value, int):
        return value
    return int(value.value) if isinstance(value, tirx.IntImm) else None


def longer(extents: Sequence[Any]) -> list[Any]:
    """Drop extents of 1."""
    return [e for e in extents if extent(e) != 1]


def same_extent(a: Any, b: Any) -> bool:
    """Whether two extents are the same."""
    if extent(a) is not None or extent(b) is not None:
        return extent(a) == extent(b)
    return bool(tvm_ffi.structural_equal(a, b))


def same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are the same."""
    return len(a) == len(b) and all(map(same_extent, a, b))
