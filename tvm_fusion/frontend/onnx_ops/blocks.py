"""DepthToSpace and SpaceToDepth in both orders of depth and block."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .node import Node

op = relax.op


def depth_to_space(node: Node) -> Any:
    """Convert DepthToSpace for any extents; mode DCR or CRD."""
    n, c, h, w = node.shape()
    block, mode = node.attribute("blocksize"), node.attribute("mode", "DCR")
    if mode == "DCR":
        x = op.reshape(node.inputs[0], (n, block, block, c // block**2, h, w))
        x = op.permute_dims(x, [0, 3, 4, 1, 5, 2])
    elif mode == "CRD":
        x = op.reshape(node.inputs[0], (n, c // block**2, block, block, h, w))
        x = op.permute_dims(x, [0, 1, 4, 2, 5, 3])
    else:
        raise node.refused(f"with mode {mode}", "use mode DCR or CRD")
    return op.reshape(x, (n, c // block**2, h * block, w * block))


def space_to_depth(node: Node) -> Any:
    """Convert SpaceToDepth; TVM does not know the mode."""
    n, c, h, w = node.shape()
    block, mode = node.attribute("blocksize"), node.attribute("mode", "DCR")
    x = op.reshape(node.inputs[0], (n, c, h // block, block, w // block, block))
    if mode == "DCR":
        x = op.permute_dims(x, [0, 3, 5, 1, 2, 4])
    elif mode == "CRD":
        x = op.permute_dims(x, [0, 1, 3, 5, 2, 4])
    else:
        raise node.refused(f"with mode {mode}", "use mode DCR or CRD")
    return op.reshape(x, (n, c * block * block, h // block, w // block))
