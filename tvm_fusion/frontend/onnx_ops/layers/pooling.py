"""Convert MaxPool and AveragePool: ceil_mode, automatic padding, indices."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...operators.spatial import AVG_POOL, MAX_POOL, average_windows
from ...registry import Unsupported
from ...shape_values.facts import as_expr
from ..arrays.padding import framed
from ..node import Node
from ..registry import register

op = relax.op


@dataclass(frozen=True)
class Windows:
    """Where the windows of a pooling lie, a number an axis.

    ``end`` is what the model pads, ``reach`` what the last window needs, or a width that is enough
    at any extent: all, and ``begin``, may depend on symbolic extents.
    """

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[Any]
    end: list[Any]
    reach: list[Any]
    out: list[Any]

    @property
    def is_fixed(self) -> bool:
        """Whether all extents are padded alike."""
        return all(isinstance(width, int) for width in self.begin + self.reach)

    @property
    def spans(self) -> list[Any]:
        """Extents that the windows cover together, padding included."""
        return [
            (count - 1) * stride + (k - 1) * dilation + 1
            for count, stride, k, dilation in zip(
                self.out, self.strides, self.kernel, self.dilations, strict=True
            )
        ]


def windows(node: Node) -> Windows:
    """Count the windows as ONNX does.

    With ``ceil_mode`` a last window counts that reaches past the padding, unless it would begin
    there; with ``auto_pad=SAME_*`` there are as many as strides, rounded up.
    """
    extents, facts = node.shape()[2:], node.facts
    rank = len(extents)
    kernel = list(node.attribute("kernel_shape"))
    strides = list(node.attribute("strides") or [1] * rank)
    dilations = list(node.attribute("dilations") or [1] * rank)
    pads = list(node.attribute("pads") or [0] * 2 * rank)
    auto_pad = node.attribute("auto_pad", "NOTSET")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    begin, end, reach, out = [], [], [], []
    for i, (extent, stride, span) in enumerate(zip(extents, strides, spans, strict=True)):
        first, last = pads[i], pads[rank + i]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            first, last = same_padding(node, extent, stride, span)
            count = facts.simplify((extent + stride - 1) // stride)
        else:
            if auto_pad == "VALID":
                first = last = 0
            room = extent + first + last - span
            if not node.attribute("ceil_mode", 0):
                if isinstance(room, int) and room < 0:
                    raise Unsupported(
                        f"by windows of {span} elements along {extent + first + last}, padding "
                        "included",
                        "use smaller windows, or more padding",
                    )
                count = facts.simplify(room // stride + 1)
            else:
                count = facts.simplify((room + stride - 1) // stride + 1)
                begun = facts.simplify((extent + first - 1) // stride + 1)
                count = facts.smaller(count, begun)
        is_single = isinstance(count, int) and count == 1
        if is_single and isinstance(extent, int):  # what lies past the padding counts for nothing
            kernel[i] = min(kernel[i], -(-(extent + first + last) // dilations[i]))
            span = (kernel[i] - 1) * dilations[i] + 1
        begin.append(first)
        end.append(last)
        needed = facts.larger(facts.simplify((count - 1) * stride + span - extent - first), 0)
        if not isinstance(needed, int) and isinstance(first, int) and isinstance(last, int):
            most = last + stride - 1  # rounding down then counts as many as rounding up does
            counted = facts.simplify((extent + first + most - span) // stride + 1)
            needed = most if facts.equal(counted, count) else needed
        reach.append(needed)
        out.append(count)
    return Windows(kernel, strides, dilations, begin, end, reach, out)


def same_padding(node: Node, extent: Any, stride: int, span: int) -> tuple[Any, Any]:
    """Return what ``auto_pad=SAME_*`` pads before and after an axis."""
    facts = node.facts
    count = facts.simplify((extent + stride - 1) // stride)
    total = facts.larger(facts.simplify((count - 1) * stride + span - extent), 0)
    first = total // 2 if node.attribute("auto_pad") == "SAME_UPPER" else total - total // 2
    return facts.simplify(first), facts.simplify(total - first)


def _is_static(node: Node) -> bool:
    return all(isinstance(extent, int) for extent in node.shape()[2:])


@register("MaxPool")
def max_pool(node: Node) -> Any:
    """Convert MaxPool, with the places of the largest elements where they are read."""
    plain = not node.attribute("ceil_mode", 0) and node.attribute("auto_pad", "NOTSET") in (
        "NOTSET",
        "VALID",
    )
    at = windows(node)
    if plain and not node.uses(1):
        return None
    rank = len(at.kernel)
    if rank > 3:
        raise Unsupported(f"over {rank} axes", "use 1 to 3 spatial axes")
    x, padding = node.inputs[0], at.begin + at.reach
    if not at.is_fixed:
        x, padding = framed(node, x, at.begin, at.spans, _least(node.dtype())), [0] * 2 * rank
    result = MAX_POOL[rank](x, at.kernel, at.strides, padding, at.dilations)
    if not node.uses(1):
        return result
    if not _is_static(node):
        raise Unsupported("over symbolic extents", "bind them with --dim NAME=VALUE, or dims={...}")
    indices = node.emit_te(
        lambda x: _indices(x, at, node.attribute("storage_order", 0)),
        node.inputs[0],
        primfunc_name_hint="max_pool_indices",
    )
    return [result, indices]


def _indices(x: te.Tensor, at: Windows, storage_order: int) -> te.Tensor:
    """Return the flat index of each window's largest element, the first one of equals."""
    extents = [*x.shape[:2], *(int(extent) for extent in x.shape[2:])]
    strides: list[Any] = [1] * len(extents)
    order = range(len(extents) - 1, 1, -1) if storage_order == 0 else range(2, len(extents))
    step: Any = 1
    for axis in (*order, 1, 0):
        strides[axis] = step
        step *= extents[axis]

    def combine(one: Any, other: Any) -> Any:
        first = tirx.any(one[1] > other[1], tirx.all(one[1] == other[1], one[0] < other[0]))
        return tirx.Select(first, one[0], other[0]), tirx.Select(first, one[1], other[1])

    def identity(index: Any, value: Any) -> Any:
        return tirx.const(2**62, index), te.min_value(value)

    largest = te.comm_reducer(combine, identity, name="largest")
    axes = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(at.kernel)]

    def element(n: Any, c: Any, *o: Any) -> Any:
        place, inside = _place(o, axes, at, extents[2:])
        index = n * strides[0] + c * strides[1]
        for p, stride in zip(place, strides[2:], strict=True):
            index = index + p * stride
        value = tirx.if_then_else(inside, x(n, c, *place), te.min_value(x.dtype))
        index = tirx.Select(inside, tirx.Cast("int64", index), tirx.const(2**62, "int64"))
        return largest((index, value), axis=axes)

    shape = [*extents[:2], *at.out]
    found, _ = te.compute(shape, element, name="largest")
    return te.compute(shape, lambda *i: found(*i), name="indices")


@register("AveragePool")
def average_pool(node: Node) -> Any:
    """Convert AveragePool; padding counts as the model says, what lies past it never does."""
    ceil = node.attribute("ceil_mode", 0)
    if not ceil and node.attribute("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        return None
    at = windows(node)
    rank = len(at.kernel)
    counts_padding = bool(node.attribute("count_include_pad", 0))
    if rank > 3:
        raise Unsupported(f"over {rank} axes", "use 1 to 3 spatial axes")
    if not at.is_fixed:
        return _framed_mean(node, at, counts_padding)
    if counts_padding and any(r > e for r, e in zip(at.reach, at.end, strict=True)):
        if not _is_static(node):
            return _framed_mean(node, at, counts_padding)
        x, both = node.wide(node.inputs[0]), (at.begin, at.end)
        windows_ = (at.out, at.kernel, at.strides, at.dilations)
        mean = average_windows(x, node.emit, node.shape()[2:], *windows_, both, True)
        return node.cast(mean, node.dtype())
    return AVG_POOL[rank](
        node.inputs[0],
        at.kernel,
        at.strides,
        at.begin + at.reach,
        at.dilations,
        count_include_pad=counts_padding,
    )


def _least(dtype: str) -> Any:
    return -np.inf if "float" in dtype else np.iinfo(dtype).min


def _framed_mean(node: Node, at: Windows, counts_padding: bool) -> Any:
    """Average windows whose padding depends on symbolic extents, by how many elements they have."""
    rank, extents = len(at.kernel), node.shape()[2:]
    x = framed(node, node.wide(node.inputs[0]), at.begin, at.spans, 0)
    zeros = [0] * 2 * rank
    mean = AVG_POOL[rank](x, at.kernel, at.strides, zeros, at.dilations, count_include_pad=True)

    bounds = [
        (-f, e + last) if counts_padding else (0, e)
        for f, e, last in zip(at.begin, extents, at.end, strict=True)
    ]
    rows = [
        as_expr(x)
        for first, (low, high) in zip(at.begin, bounds, strict=True)
        for x in (first, low, high)
    ]
    # Kernels know the extents of their tensors alone: those of others are loaded.
    numbers = node.emit(op.shape_to_tensor(relax.ShapeExpr(rows)))

    def rescaled(mean: te.Tensor, numbers: te.Tensor) -> te.Tensor:
        def inside(axis: int, place: Any) -> Any:
            """Count the steps of a window along an axis that count."""
            first, low, high = (numbers[3 * axis + i] for i in range(3))
            start, step = place * at.strides[axis] - first, at.dilations[axis]
            most, none = as_expr(at.kernel[axis]), as_expr(0)
            until = [(bound - start + step - 1) // step for bound in (low, high)]
            skipped, ended = (tirx.max(tirx.min(each, most), none) for each in until)
            return ended - skipped

        def element(*index: Any) -> Any:
            counts = [inside(axis, place) for axis, place in enumerate(index[2:])]
            whole = tirx.const(math.prod(at.kernel), mean.dtype)
            return mean(*index) * (whole / tirx.Cast(mean.dtype, math.prod(counts)))

        return te.compute(mean.shape, element, name="window_mean")

    mean = node.emit_te(rescaled, node.emit(mean), numbers, primfunc_name_hint="window_mean")
    return node.cast(mean, node.dtype())


def _place(position: Any, axes: Any, at: Windows, extents: list[int]) -> tuple[list[Any], Any]:
    place = [
        p * s - b + k * d
        for p, k, s, b, d in zip(position, axes, at.strides, at.begin, at.dilations, strict=True)
    ]
    inside = [c for p, e in zip(place, extents, strict=True) for c in (p >= 0, p < e)]
    return place, tirx.all(*inside)


@register("MaxUnpool")
def max_unpool(node: Node) -> Any:
    """Convert MaxUnpool with an output shape by zeros behind the inferred one; the rest is TVM's.

    The indices are of the inferred shape, as in onnx's reference.
    """
    if not node.has(2):
        return None
    wanted = [int(extent) for extent in node.required_constant(2, "output_shape").reshape(-1)]
    names = ("kernel_shape", "pads", "strides")
    attributes = {n: node.attribute(n) for n in names if node.attribute(n) is not None}
    result = node.apply("MaxUnpool", *node.inputs[:2], **attributes)
    missing = [want - int(have) for want, have in zip(wanted, result.ty.shape, strict=True)]
    if min(missing) < 0:
        raise Unsupported(f"to output_shape {wanted}, below the inferred one", "correct it")
    return op.nn.pad(result, [width for each in missing for width in (0, each)])
