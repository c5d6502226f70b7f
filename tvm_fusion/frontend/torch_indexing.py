"""PyTorch's indexing as lookups: numbers from the end, several indices, slices that are written."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx

op = relax.op


def select(node: Any, importer: Any) -> Any:
    """Convert ``x[..., number, ...]``: TVM 0.27 takes -1 for a number before the first."""
    data, axis, number = importer.retrieve_args(node)
    extent = importer.shape_of(data)[axis]
    return importer.block_builder.emit(
        op.take(data, relax.prim_value(number + extent if number < 0 else number), axis)
    )


def index(node: Any, importer: Any) -> Any:
    """Convert ``x[i, :, j]``: one lookup in the axes that are indexed, taken as one.

    Several indices go together, as PyTorch has it: TVM 0.27 combines each of one with each of the
    other where a whole axis stands beside them, and does not know numbers from the end.
    """
    data, indices = importer.retrieve_args(node)
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if any("bool" in str(i.ty.dtype) for _, i in given):
        return importer._index_tensor(node)
    emit, shape = importer.block_builder.emit, [*importer.shape_of(data)]
    axes = [axis for axis, _ in given]
    if axes != list(range(axes[0], axes[-1] + 1)):
        rest = [axis for axis in range(len(shape)) if axis not in axes]
        data = emit(op.permute_dims(data, [*axes, *rest]))
        shape, axes = [shape[axis] for axis in (*axes, *rest)], list(range(len(axes)))
    extents = shape[axes[0] : axes[-1] + 1]
    position = _of(0)
    for (_, number), extent in zip(given, extents, strict=True):
        position = op.add(op.multiply(position, _of(extent)), _from_start(number, extent))
    if len(axes) > 1:
        merged = [*shape[: axes[0]], math.prod(extents), *shape[axes[-1] + 1 :]]
        data = emit(op.reshape(data, merged))
    return emit(op.take(data, emit(position), axis=axes[0]))


def index_put(node: Any, importer: Any) -> Any:
    """Convert writing of slices along one axis, and of one value where a mask holds.

    Each slice of the result finds the place of its number among the indices: what it takes from the
    values is read where it is needed, and of a number that comes twice the last value counts. All
    other ways are the importer's, which knows few.
    """
    data, indices, values, *more = importer.retrieve_args(node)
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    axis, number = given[0]
    if len(given) > 1 or any(more):
        return importer._index_put(node)
    emit, shape = importer.block_builder.emit, [*importer.shape_of(data)]
    if "bool" in str(number.ty.dtype) and math.prod(importer.shape_of(values)) == 1:
        mask = [*[1] * axis, *importer.shape_of(number)]
        mask += [1] * (len(shape) - len(mask))
        value = op.reshape(values, [1] * len(shape))
        return emit(op.where(op.reshape(number, mask), value, data))
    if "bool" in str(number.ty.dtype) or number.ty.ndim != 1:
        return importer._index_put(node)
    extent, count = shape[axis], importer.shape_of(number)[0]
    behind = [1] * (len(shape) - axis - 1)
    numbers = op.expand_dims(op.arange(extent, dtype="int64"), 1)
    is_hit = op.equal(numbers, op.expand_dims(_from_start(number, extent), 0))
    if count == 1:
        return emit(op.where(op.reshape(is_hit, [extent, *behind]), values, data))
    places = op.expand_dims(op.arange(count, dtype="int64"), 0)
    place = emit(op.max(op.where(is_hit, places, _of(-1)), axis=1))
    values = op.broadcast_to(values, [*shape[:axis], count, *shape[axis + 1 :]])
    moved = op.take(values, op.maximum(place, _of(0)), axis=axis)
    is_written = op.greater_equal(place, _of(0))
    return emit(op.where(op.reshape(is_written, [extent, *behind]), moved, data))


def _from_start(number: Any, extent: Any) -> Any:
    """Count from the start of an axis what may be counted from its end."""
    number = op.astype(number, "int64")
    return op.where(op.less(number, _of(0)), op.add(number, _of(extent)), number)


def _of(number: Any) -> Any:
    """Make a scalar operand of a number or of an extent."""
    if isinstance(number, tirx.IntImm):
        number = int(number)
    return relax.const(number, "int64") if isinstance(number, int) else relax.prim_value(number)
