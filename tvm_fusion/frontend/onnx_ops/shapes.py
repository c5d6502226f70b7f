"""Operators that make or use shapes, in the spellings that TVM's converters do not know."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from .node import Node, static

op = relax.op


def expand(node: Node) -> Any:
    """Convert Expand to a shape that is known up to symbols; one that is computed is left to TVM.

    ONNX broadcasts both ways: where the target has one, the data's extent stays.
    """
    wanted = node.inputs[1]
    if isinstance(wanted, GenericConst):
        target: list[Any] = [int(extent) for extent in np.atleast_1d(wanted.value.numpy())]
    elif isinstance(wanted, relax.ShapeExpr):
        target = list(wanted)
    else:
        return None
    data = node.inputs[0]
    if not isinstance(getattr(data, "ty", None), relax.TensorType):
        return None
    shape = node.shape()
    rank = max(len(shape), len(target))
    shape = [1] * (rank - len(shape)) + shape
    target = [1] * (rank - len(target)) + target
    # -1 keeps the extent, which exporters write though ONNX does not define it.
    extents = [d if static(t) in (1, -1) else t for d, t in zip(shape, target, strict=True)]
    for have, want in zip(shape, extents, strict=True):
        one, other = static(have), static(want)
        if one is not None and other is not None and one not in (1, other):
            raise node.refused(
                f"from shape {shape} to {target}, which do not broadcast", "correct the shape"
            )
    return op.broadcast_to(data, relax.ShapeExpr(extents))


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
