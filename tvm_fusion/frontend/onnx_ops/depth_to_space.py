"""Convert DepthToSpace and SpaceToDepth in both modes."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .node import Node
from .registry import other_than, register

op = relax.op


_IN_BOTH_ORDERS = other_than(mode=("DCR", "CRD"))


@register("DepthToSpace", refuses=_IN_BOTH_ORDERS)
def depth_to_space(node: Node) -> Any:
    """Convert DepthToSpace for any extents; mode DCR or CRD."""
    n, c, h, w = node.shape()
    block = node.attribute("blocksize")
    if node.attribute("mode", "DCR") == "DCR":
        x = op.reshape(node.inputs[0], (n, block, block, c // block**2, h, w))
        x = op.permute_dims(x, [0, 3, 4, 1, 5, 2])
    else:
        x = op.reshape(node.inputs[0], (n, c // block**2, block, block, h, w))
        x = op.permute_dims(x, [0, 1, 4, 2, 5, 3])
    return op.reshape(x, (n, c // block**2, h * block, w * block))


@register("SpaceToDepth", refuses=_IN_BOTH_ORDERS)
def space_to_depth(node: Node) -> Any:
    """Convert SpaceToDepth; TVM does not know the mode."""
    n, c, h, w = node.shape()
    block = node.attribute("blocksize")
    x = op.reshape(node.inputs[0], (n, c, h // block, block, w // block, block))
    order = [0, 3, 5, 1, 2, 4] if node.attribute("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    x = op.permute_dims(x, order)
    return op.reshape(x, (n, c * block * block, h // block, w // block))
