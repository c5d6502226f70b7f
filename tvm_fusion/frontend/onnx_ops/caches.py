"""Convert TensorScatter, which writes new keys and values into a cache."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ..registry import Unsupported
from .node import Node
from .registry import other_than, register


@register("TensorScatter", refuses=other_than(mode=("linear", "circular")))
def tensor_scatter(node: Node) -> Any:
    """Convert TensorScatter: the update from each batch's own place on, around the end if circular.

    ::

        t = j - write_indices[b]  (modulo the extent if circular)
        y[b, .., j, ..] = update[b, .., t, ..] if 0 <= t < length else past[b, .., j, ..]
    """
    rank = len(node.shape())
    axis = node.attribute("axis", -2) % rank
    if axis == 0:
        raise Unsupported("along the batch", "use another axis")
    circular = node.attribute("mode", "linear") == "circular"
    indices = [node.inputs[2]] if node.has(2) else []

    def scatter(past: te.Tensor, update: te.Tensor, *starts: te.Tensor) -> te.Tensor:
        extent, length = past.shape[axis], update.shape[axis]

        def element(*at: Any) -> Any:
            place = tirx.Cast("int64", at[axis])
            if starts:
                place = place - tirx.Cast("int64", starts[0][at[0]])
            if circular:
                place = tirx.floormod(place, tirx.Cast("int64", extent))
            new = update(*at[:axis], place, *at[axis + 1 :])
            inside = tirx.all(place >= 0, place < tirx.Cast("int64", length))
            return tirx.if_then_else(inside, new, past(*at))

        return te.compute(past.shape, element, name="tensor_scatter")

    return node.emit_te(scatter, *node.inputs[:2], *indices, primfunc_name_hint="tensor_scatter")
