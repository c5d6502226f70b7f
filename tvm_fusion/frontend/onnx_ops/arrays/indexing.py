"""Convert OneHot, ReverseSequence, and TensorScatter, which writes keys and values into a cache."""

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...registry import Unsupported
from ..node import Node
from ..registry import other_than, register

op = relax.op


@register("OneHot")
def one_hot(node: Node) -> Any:
    """Convert OneHot as a comparison with the numbers of the classes.

    The result has the type of the values, which may be computed; a class past the depth, or before
    its negative, gives a row of off values.
    """
    known = node.extents(1)
    depth = known[0] if known else _computed_depth(node)
    rank = len(node.shape()) + 1
    axis = node.attribute("axis", -1) % rank
    indices = node.inputs[0]
    if "int" not in node.dtype():
        indices = op.astype(indices, "int64")
    dtype = node.dtype() if "int" in node.dtype() else "int64"
    if dtype.startswith("uint"):
        indices, dtype = op.astype(indices, "int64"), "int64"
    indices = node.emit(op.expand_dims(indices, axis))
    row = [depth if i == axis else 1 for i in range(rank)]
    if isinstance(depth, int):
        count = relax.const(depth, dtype)
        classes = relax.const(np.arange(depth, dtype=dtype).reshape(row), dtype)
    else:
        shape = relax.ShapeExpr([depth])
        count = node.emit(node.cast(node.emit(op.shape_to_tensor(shape)), dtype))
        classes = node.emit(op.reshape(op.arange(depth, dtype=dtype), relax.ShapeExpr(row)))
    is_before = op.less(indices, relax.const(0, dtype))
    indices = op.where(is_before, op.add(indices, count), indices)
    values = node.inputs[2]
    off, on = (op.strided_slice(values, [0], [i], [i + 1]) for i in (0, 1))
    one = [1] * rank
    return op.where(op.equal(indices, classes), op.reshape(on, one), op.reshape(off, one))


def _computed_depth(node: Node) -> Any:
    """Return the number of classes, which may be known only at run time."""
    found = node.constant(1)
    if found is not None:
        return int(found.reshape(-1)[0])
    wanted = node.emit(node.cast(node.emit(op.reshape(node.inputs[1], [1])), "int64"))
    fits = op.greater(wanted, relax.const(0, "int64"))
    fits = op.logical_and(fits, node.is_small(wanted, node.shape()))
    return node.computed_extents(wanted, fits, [None])[0]


@register("ReverseSequence")
def reverse_sequence(node: Node) -> Any:
    """Convert ReverseSequence: the first ``sequence_lens[b]`` elements of row b in reverse."""
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)
    lengths = node.matched(node.inputs[1], [node.shape()[batch]])

    def reverse(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            t, length = at[time], tirx.Cast(at[time].ty.dtype, lengths[at[batch]])
            from_end = tirx.Select(t < length, length - 1 - t, t)
            return x(*at[:time], from_end, *at[time + 1 :])

        return te.compute(x.shape, element, name="reverse_sequence")

    x = node.inputs[0]
    return node.emit_te(reverse, x, lengths, primfunc_name_hint="reverse_sequence")


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
