"""Convert operators that take shapes: Expand, Reshape, Slice, Split, Squeeze, Tile."""

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from ...dimensions.symbolic import UNLIMITED
from ...registry import Unsupported
from ...shape_values.facts import as_expr
from ...tensor_types import static
from ..node import Node
from ..registry import register

op = relax.op


@register("Expand", takes_extents=True)
def expand(node: Node) -> Any:
    """Convert Expand, which broadcasts both ways: where the target has one, the extent stays.

    TVM's converter gives the result the target's shape where that is computed.
    """
    known = node.extents(1)
    target: list[Any] = _computed(node) if known is None else known
    data = node.inputs[0]
    if not isinstance(getattr(data, "ty", None), relax.TensorType):
        return None
    shape = node.shape()
    rank = max(len(shape), len(target))
    shape = [1] * (rank - len(shape)) + shape
    target = [1] * (rank - len(target)) + target
    # -1 keeps the extent, which exporters write though ONNX does not define it.
    extents = [_broadcast(node, d, t) for d, t in zip(shape, target, strict=True)]
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
    shape, one = node.shape(), relax.const(1, "int64")
    own = shape[max(0, len(shape) - rank) :]
    own = [1] * (rank - len(own)) + own
    have = node.emit(op.shape_to_tensor(relax.ShapeExpr(own)))
    wanted = node.emit(node.cast(node.inputs[1], "int64"))
    keeps = op.logical_or(op.equal(wanted, one), op.equal(wanted, relax.const(-1, "int64")))
    keeps = node.emit(keeps)
    fits = op.logical_or(op.logical_or(keeps, op.equal(have, one)), op.equal(wanted, have))
    wanted = node.emit(op.where(keeps, have, wanted))
    known = [None if static(d) in (None, 1) else d for d in own]
    return node.computed_extents(
        wanted, op.logical_and(node.emit(fits), node.is_small(wanted)), known
    )


def _broadcast(node: Node, have: Any, want: Any) -> Any:
    if static(want) in (1, -1) or node.facts.equal(have, want):
        return have
    if static(want) is not None or static(have) == 1:
        return want
    # Either they are equal or the target has one.
    return have if static(have) is not None else tirx.max(have, want)


@register("Reshape", takes_extents=True)
def reshape(node: Node) -> Any:
    """Convert Reshape to extents that are known or computed; all numbers are left to TVM."""
    data = node.inputs[0]
    if not isinstance(getattr(data, "ty", None), relax.TensorType) or node.opset < 5:
        return None
    wanted = node.extents(1)
    keeps_zero = bool(node.attribute("allowzero", 0))
    if wanted is None:
        return _reshape_computed(node, keeps_zero)
    if data.ty.shape is None:
        return op.reshape(data, relax.ShapeExpr(wanted)) if min(map(_least, wanted)) > 0 else None
    shape, facts = node.shape(), node.facts
    if all(isinstance(extent, int) for extent in (*wanted, *shape)):
        return None
    out = [
        shape[i] if not keeps_zero and isinstance(e, int) and e == 0 else e
        for i, e in enumerate(wanted)
    ]
    free = [i for i, e in enumerate(out) if isinstance(e, int) and e == -1]
    if len(free) == 1:
        out[free[0]] = facts.quotient(shape, [e for i, e in enumerate(out) if i != free[0]])
    return op.reshape(data, relax.ShapeExpr(out))


def _least(extent: Any) -> int:
    return extent if isinstance(extent, int) else 1


def _reshape_computed(node: Node, keeps_zero: bool) -> Any:
    """Convert Reshape to a shape that is computed at run time, with its 0 and -1."""
    (rank,) = node.shape(1)
    if not isinstance(rank, int):
        raise Unsupported("to a computed rank", "give the shape a fixed number of elements")
    data, wanted = node.inputs[0], node.emit(node.cast(node.inputs[1], "int64"))
    zero, one = relax.const(0, "int64"), relax.const(1, "int64")
    own = node.emit(op.shape_to_tensor(node.emit(op.shape_of(data))))
    if not keeps_zero:
        have = data.ty.ndim
        same = own
        if rank < have:
            same = op.strided_slice(own, [0], [0], [rank])
        elif rank > have:
            same = op.concat([own, relax.const(np.ones(rank - have, "int64"), "int64")], 0)
        wanted = node.emit(op.where(op.equal(wanted, zero), node.emit(same), wanted))
    is_free = node.emit(op.less(wanted, zero))
    others = node.emit(op.prod(op.where(is_free, one, wanted)))
    count = node.emit(op.prod(own))
    rest = op.floor_divide(count, op.maximum(others, one))
    wanted = node.emit(op.where(is_free, rest, wanted))
    fits = op.logical_and(op.equal(op.prod(wanted), count), node.is_small(wanted))
    extents = node.computed_extents(wanted, fits, [None] * rank)
    return op.reshape(data, relax.ShapeExpr(extents))


@register("Tile", takes_extents=True)
def tile(node: Node) -> Any:
    """Convert Tile by counts that are symbolic, or computed; numbers are left to TVM."""
    counts = node.extents(1) if node.opset >= 6 else None
    data = node.inputs[0]
    if node.opset < 6 or not isinstance(getattr(data, "ty", None), relax.TensorType):
        return None
    if data.ty.shape is None or isinstance(node.inputs[1], GenericConst):
        return None
    if counts is None:
        wanted = node.emit(node.cast(node.inputs[1], "int64"))
        own = node.emit(op.shape_to_tensor(relax.ShapeExpr(node.shape())))
        whole = node.emit(op.multiply(op.astype(wanted, "float64"), op.astype(own, "float64")))
        fits = op.greater_equal(wanted, relax.const(0, "int64"))
        fits = op.logical_and(node.emit(fits), node.is_small(whole))
        counts = node.computed_extents(wanted, fits, [None] * data.ty.ndim)
    split: list[Any] = []
    spread: list[Any] = []
    out: list[Any] = []
    for count, extent in zip(counts, node.shape(), strict=True):
        split += [1, extent]
        spread += [count, extent]
        out.append(node.facts.simplify(count * extent))
    rows = node.emit(op.reshape(data, relax.ShapeExpr(split)))
    rows = node.emit(op.broadcast_to(rows, relax.ShapeExpr(spread)))
    return op.reshape(rows, relax.ShapeExpr(out))


@register("Squeeze", takes_extents=True)
def squeeze(node: Node) -> Any:
    """Convert Squeeze of symbolic extents, which have to be one; others are left to TVM."""
    data = node.inputs[0]
    if not isinstance(getattr(data, "ty", None), relax.TensorType) or data.ty.shape is None:
        return None
    axes, shape = node.attribute("axes"), node.shape()
    if axes is None and node.has(1):
        axes = node.extents(1)
    if axes is None and not node.has(1):
        axes = _ones(node, shape)
        return op.squeeze(data, axes) if axes else data
    if not axes or not all(isinstance(axis, int) for axis in axes):
        return None
    axes = [axis % len(shape) for axis in axes]
    symbolic = [axis for axis in axes if not isinstance(shape[axis], int)]
    if not symbolic:
        return None
    ones = [1 if i in axes else extent for i, extent in enumerate(shape)]
    return op.squeeze(node.matched(data, ones), axes)


def _ones(node: Node, shape: list[Any]) -> list[int]:
    """List the axes of one element, where that is known of all."""
    for axis, extent in enumerate(shape):
        if not isinstance(extent, int) and not node.facts.proves(extent > 1):
            raise Unsupported(
                f"without axes, of a tensor whose axis {axis} may have one element, or several",
                "give it its axes, or give that dimension a range that begins at 2",
            )
    return [axis for axis, extent in enumerate(shape) if isinstance(extent, int) and extent == 1]


@register("Slice", takes_extents=True)
def slice_(node: Node) -> Any:
    """Convert Slice over symbolic extents by what their ranges prove; others are left to TVM."""
    first, last = node.attribute("starts"), node.attribute("ends")
    if first is not None and last is not None:  # before opset 10
        along = list(node.attribute("axes") or range(len(first)))
        bounds = _without_elements(node.shape(), along, first, last, [1] * len(along))
        first, last, _ = bounds or (list(first), list(last), None)
        return op.strided_slice(node.inputs[0], along, first, last, assume_inbound=bool(bounds))
    data = node.inputs[0]
    if not isinstance(getattr(data, "ty", None), relax.TensorType) or data.ty.shape is None:
        return None
    given = [node.extents(i) if node.has(i) else None for i in range(1, 5)]
    starts, ends, axes, steps = given
    if any(given[i] is None and node.has(i + 1) for i in (2, 3)):
        return None
    if starts is None or ends is None:
        return _slice_computed(node, axes, steps)
    axes, steps, shape = axes or list(range(len(starts))), steps or [1] * len(starts), node.shape()
    if not all(isinstance(number, int) for number in (*axes, *steps)):
        return None
    axes = [axis % len(shape) for axis in axes]
    is_empty = _without_elements(shape, axes, starts, ends, steps)
    starts, ends, steps = is_empty or (starts, ends, steps)
    if min(steps) < 1:
        return None
    begins, stops = [], []
    for axis, start, end in zip(axes, starts, ends, strict=True):
        begin, stop = (_bounded(node, at, shape[axis]) for at in (start, end))
        if begin is None or stop is None:
            return None
        stop = node.facts.larger(begin, stop)
        begins.append(begin)
        stops.append(stop)
    is_static = all(isinstance(x, int) for x in (*begins, *stops, *(shape[a] for a in axes)))
    if is_static and not is_empty:
        return None
    return op.strided_slice(data, axes, begins, stops, steps, assume_inbound=True)


def _without_elements(
    shape: list[Any], axes: list[int], starts: Any, ends: Any, steps: list[int]
) -> tuple[list[Any], list[Any], list[int]] | None:
    """Return bounds that count as many elements, where an axis has none; TVM counts fewer than 0.

    What is read along other axes does not matter then.
    """
    bounds = list(zip(starts, ends, steps, strict=True))
    for place, (axis, bound) in enumerate(zip(axes, bounds, strict=True)):
        if all(isinstance(number, int) for number in (shape[axis], *bound)):
            bounds[place] = (0, len(range(*slice(*bound).indices(shape[axis]))), 1)
    if not any(isinstance(stop, int) and start == stop for start, stop, _ in bounds):
        return None
    begins, stops, strides = map(list, zip(*bounds, strict=True))
    return begins, stops, strides


def _slice_computed(node: Node, axes: list[Any] | None, steps: list[Any] | None) -> Any:
    """Convert Slice whose bounds are known only at run time, by steps of one.

    An end before the start gives no element, where TVM counts fewer than none.
    """
    (count,) = node.shape(1)
    shape = node.shape()
    if not isinstance(count, int) or any(step != 1 for step in steps or []):
        return None
    axes = list(range(count)) if axes is None else axes
    if not all(isinstance(axis, int) for axis in axes):
        return None
    axes = [axis % len(shape) for axis in axes]
    own = node.emit(op.shape_to_tensor(relax.ShapeExpr([shape[axis] for axis in axes])))
    zero = relax.const(0, "int64")

    def place(index: int) -> Any:
        given = node.emit(node.cast(node.inputs[index], "int64"))
        given = node.emit(op.where(op.less(given, zero), op.add(given, own), given))
        return node.emit(op.minimum(op.maximum(given, zero), own))

    begin = place(1)
    extent = node.emit(op.maximum(op.subtract(place(2), begin), zero))
    found = op.concat([begin, extent], 0)
    read = node.computed_extents(node.emit(found), op.equal(zero, zero), [None] * (2 * count))
    begins, extents = read[:count], read[count:]
    ends = [first + size for first, size in zip(begins, extents, strict=True)]
    return op.strided_slice(node.inputs[0], axes, begins, ends, assume_inbound=True)


def _bounded(node: Node, place: Any, extent: Any) -> Any:
    """Return where in a tensor a bound of a slice is; None where its sign is not known.

    The largest integers mean the end: of an extent that is known at run time alone, TVM would
    reserve memory for as many elements.
    """
    if isinstance(place, int) and place >= UNLIMITED:
        return extent
    facts = node.facts
    is_from_end = facts.decide(as_expr(place) < 0)
    if is_from_end is None:
        return None
    if is_from_end:
        return facts.larger(0, facts.simplify(extent + place))
    return facts.smaller(place, extent)


@register("Split")
def split(node: Node) -> Any:
    """Convert Split with a part of no elements, or by computed sizes; others are TVM's."""
    sizes: list[Any] | None = node.attribute("split")
    if sizes is None and node.has(1):
        sizes = node.extents(1)
        if sizes is None or not _adds_up(node, sizes):
            sizes = _computed_parts(node)
    if sizes is None:
        return None
    if all(isinstance(size, int) for size in sizes):
        extent = node.shape()[node.attribute("axis", 0)]
        if isinstance(extent, int) and (sum(sizes) != extent or min(sizes) < 0):
            each = ", ".join(map(str, sizes))
            raise Unsupported(f"of {extent} elements into {each}", "correct the sizes of its parts")
        if all(sizes):
            return None
    axis, parts = node.attribute("axis", 0), []
    start: Any = 0
    for size in sizes:
        stop = node.facts.simplify(start + size)
        parts.append(op.strided_slice(node.inputs[0], [axis], [start], [stop], assume_inbound=True))
        start = stop
    return parts


def _adds_up(node: Node, sizes: list[Any]) -> bool:
    """Tell whether parts are known to fill the axis; numbers alone are left to ONNX's inference."""
    if all(isinstance(size, int) for size in sizes):
        return True
    total = node.facts.simplify(sum(sizes[1:], sizes[0]))
    return node.facts.equal(total, node.shape()[node.attribute("axis", 0)]) and all(
        node.facts.proves(as_expr(size) >= 0) for size in sizes
    )


def _computed_parts(node: Node) -> list[Any]:
    """Return variables for the sizes of parts that are known only at run time."""
    (count,) = node.shape(1)
    if not isinstance(count, int):
        raise Unsupported("into a computed number of parts", "give the sizes a fixed length")
    extent = node.shape()[node.attribute("axis", 0)]
    wanted = node.emit(node.cast(node.inputs[1], "int64"))
    whole = node.emit(op.shape_to_tensor(relax.ShapeExpr([extent])))
    # Each is no more than the whole: sums of 64 bits wrap around.
    fits = op.logical_and(
        op.greater_equal(wanted, relax.const(0, "int64")), op.less_equal(wanted, whole)
    )
    fits = op.logical_and(fits, op.equal(op.sum(wanted, keepdims=True), whole))
    return node.computed_extents(wanted, fits, [None] * count)
