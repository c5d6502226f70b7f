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
            of an index that is brought near the cache: no difference overflows
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
            place, size, count = (tirx.Cast("int64", v) for v in (at[axis], extent, length))
            if starts:
                start = tirx.Cast("int64", starts[0][at[0]])
                near = tirx.max(tirx.min(start, size), -count)
                place = place - (tirx.floormod(start, size) if circular else near)
            if circular:
                place = tirx.floormod(place, size)
            new = update(*at[:axis], place, *at[axis + 1 :])
            inside = tirx.all(place >= 0, place < count)
            return tirx.if_then_else(inside, new, past(*at))

        return te.compute(past.shape, element, name="tensor_scatter")

    return node.emit_te(scatter, *node.inputs[:2], *indices, primfunc_name_hint="tensor_scatter")
