"""Extents of shapes, static and symbolic, as laws ask about them."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import ml_dtypes
import numpy as np
from tvm import ir, relax
from tvm_ffi import structural_equal

from ....core.constants.numpy_types import numpy_dtype
from ..graph import EGraph

Extent: TypeAlias = "int | ir.Expr"


def extents(ty: relax.TensorType) -> list[Extent]:
    """List a tensor's extents, the known ones as integers."""
    return [int(e.value) if hasattr(e, "value") else e for e in ty.shape.values]


def same(first: Extent, second: Extent) -> bool:
    """Whether two extents are equal for certain."""
    if isinstance(first, int) or isinstance(second, int):
        return isinstance(first, int) and isinstance(second, int) and first == second
    return bool(structural_equal(first, second))


def all_same(first: Sequence[Extent], second: Sequence[Extent]) -> bool:
    """Whether two shapes are equal for certain."""
    return len(first) == len(second) and all(map(same, first, second))


def is_one(extent: Extent) -> bool:
    """Whether an extent is 1 for certain."""
    return isinstance(extent, int) and extent == 1


def aligned(ty: relax.TensorType, rank: int) -> list[Extent]:
    """List a tensor's extents with ones in front, as broadcasting to a rank reads them."""
    found = extents(ty)
    return [1] * (rank - len(found)) + found


def spreads(small: relax.TensorType, large: relax.TensorType) -> bool:
    """Whether an operator on both has the second one's shape, by broadcasting the first."""
    into = extents(large)
    if small.ndim > len(into):
        return False
    pairs = zip(aligned(small, len(into)), into, strict=True)
    return all(is_one(a) or same(a, b) for a, b in pairs)


def count(ty: relax.TensorType, axes: Sequence[int]) -> int | None:
    """Multiply the extents of some axes; None if one is symbolic."""
    sizes = extents(ty)
    found = [sizes[axis] for axis in axes]
    return math.prod(found) if all(isinstance(n, int) for n in found) else None


def nbytes(ty: relax.TensorType) -> int | None:
    """Count a tensor's bytes; None if its shape is symbolic."""
    elements = count(ty, range(ty.ndim))
    return None if elements is None else elements * numpy_dtype(str(ty.dtype)).itemsize


def is_integer(ty: relax.TensorType) -> bool:
    """Whether elements wrap around: signed and unsigned integers."""
    return numpy_dtype(str(ty.dtype)).kind in "iu"


def is_float(ty: relax.TensorType) -> bool:
    """Whether elements are floating point numbers."""
    return str(ty.dtype).startswith(("float", "bfloat"))


def normal(value: float, ty: relax.TensorType) -> bool:
    """Whether a number is neither infinite nor denormal in a tensor's dtype; 0 is normal."""
    info = ml_dtypes.finfo(numpy_dtype(str(ty.dtype)))
    return value == 0 or float(info.smallest_normal) <= abs(value) <= float(info.max)


def reshaped(graph: EGraph, number: int, shape: Sequence[Extent], law: str) -> int | None:
    """Add a reshape; the class itself if it has the shape."""
    if all_same(extents(graph[number].type), shape):
        return graph.find(number)
    return graph.call(lambda x: relax.op.reshape(x, list(shape)), number, law=law)


def without_axes(
    graph: EGraph, number: int, axes: Sequence[int], rank: int, law: str
) -> int | None:
    """Drop axes of extent 1, counted as broadcasting to a rank counts them."""
    ty = graph[number].type
    lead = rank - ty.ndim
    own = [axis - lead for axis in axes if axis >= lead]
    kept = [e for i, e in enumerate(extents(ty)) if i not in own]
    return reshaped(graph, number, kept, law)


def magnitudes(value: np.ndarray | None) -> np.ndarray | None:
    """Return the absolute values of a small constant's elements, in float64."""
    return None if value is None else np.abs(value.astype(np.float64))
