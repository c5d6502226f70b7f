"""Convert operators that compute or take shapes: Concat, Gather, Expand, Slice, Split."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from ..registry import Unsupported
from ..tensor_types import static
from .node import Node
from .registry import register

op = relax.op


@register("Concat", takes_extents=True)
def concat(node: Node) -> Any:
    """Convert Concat of shapes with other values; shapes and constants alone are left to TVM."""
    is_shape = [isinstance(value, relax.ShapeExpr) for value in node.inputs]
    if not any(is_shape) or all(
        shape or isinstance(value, GenericConst)
        for shape, value in zip(is_shape, node.inputs, strict=True)
    ):
        return None
    tensors = [
        node.emit(op.shape_to_tensor(value)) if shape else value
        for shape, value in zip(is_shape, node.inputs, strict=True)
    ]
    return op.concat(tensors, axis=node.attribute("axis", 0))


@register("Gather", takes_extents=True)
def gather(node: Node) -> Any:
    """Convert Gather of several extents of a shape, which stay extents; all others are TVM's."""
    shape = node.inputs[0]
    if not isinstance(shape, relax.ShapeExpr) or not isinstance(node.inputs[1], GenericConst):
        return None
    places = node.inputs[1].value.numpy()
    if places.ndim != 1:
        return None
    node.attribute("axis")
    return relax.ShapeExpr([shape.values[int(place)] for place in places])


@register("Expand", takes_extents=True)
def expand(node: Node) -> Any:
    """Convert Expand, which broadcasts both ways: where the target has one, the extent stays.

    TVM's converter gives the result the target's shape where that is computed.
    """
    wanted = node.inputs[1]
    if isinstance(wanted, GenericConst):
        target: list[Any] = [int(extent) for extent in np.atleast_1d(wanted.value.numpy())]
    elif isinstance(wanted, relax.ShapeExpr):
        target = list(wanted)
    else:
        target = _computed(node)
    data = node.inputs[0]
    if not isinstance(getattr(data, "ty", None), relax.TensorType):
        return None
    shape = node.shape()
    rank = max(len(shape), len(target))
    shape = [1] * (rank - len(shape)) + shape
    target = [1] * (rank - len(target)) + target
    # -1 keeps the extent, which exporters write though ONNX does not define it.
    extents = [_broadcast(d, t) for d, t in zip(shape, target, strict=True)]
    for have, want in zip(shape, extents, strict=True):
        one, other = static(have), static(want)
        if one is not None and other is not None and one not in (1, other):
            raise Unsupported(
                f"from shape {shape} to {target}, which do not broadcast", "correct the shape"
            )
    return op.broadcast_to(data, relax.ShapeExpr(extents))


def _computed(node: Node) -> list[Any]:
    """Return variables for the extents of a shape that is known only at run time."""
    (rank,) = node.shape(1)
    if not isinstance(rank, int):
        advice = f"bind the length of its shape with --dim {rank}=VALUE, or dims={{...}}"
        raise Unsupported("to a computed rank", advice)
    extents = [tirx.Var(f"extent_{i}", "int64") for i in range(rank)]
    wanted = node.inputs[1]
    if node.dtype(1) != "int64":
        wanted = op.astype(wanted, "int64")
    shape = node.emit(op.tensor_to_shape(node.emit(wanted)))
    node.builder.match_cast(shape, relax.ShapeType(extents))
    return extents


def _broadcast(have: Any, want: Any) -> Any:
    if static(want) in (1, -1):
        return have
    if static(want) is not None or static(have) == 1:
        return want
    # Either they are equal or the target has one.
    return have if static(have) is not None else tirx.max(have, want)


@register("Slice", takes_extents=True)
def slice_by_attributes(node: Node) -> Any:
    """Convert Slice before opset 10, with its bounds in attributes; later ones are left to TVM."""
    starts, ends = node.attribute("starts"), node.attribute("ends")
    if starts is None or ends is None:
        return None
    axes = node.attribute("axes") or list(range(len(starts)))
    data = node.inputs[0]
    if isinstance(data, relax.ShapeExpr):
        return relax.ShapeExpr(list(data)[starts[0] : ends[0]])
    return op.strided_slice(data, list(axes), list(starts), list(ends), assume_inbound=False)


@register("Split")
def split(node: Node) -> Any:
    """Convert Split with a part of no elements, which TVM's operator refuses; others are TVM's."""
    sizes = node.attribute("split")
    if sizes is None:
        found = node.constant(1)
        sizes = None if found is None else [int(size) for size in found.reshape(-1)]
    if sizes is None or 0 not in sizes:
        return None
    axis, parts, start = node.attribute("axis", 0), [], 0
    for size in sizes:
        parts.append(op.strided_slice(node.inputs[0], [axis], [start], [start + size]))
        start += size
    return parts
