"""Convert MaxPool and AveragePool: ceil_mode, automatic padding, indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from ..registry import Unsupported
from ..shape_values.facts import as_expr
from ..spatial import AVG_POOL, MAX_POOL, average_windows
from .node import Node
from .registry import register

op = relax.op


@dataclass(frozen=True)
class Windows:
    """Where the windows of a pooling lie, a number an axis.

    ``end`` is what the model pads, ``reach`` what the last window needs.
    """

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]
    reach: list[int]
    out: list[Any]


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
                count = facts.simplify(room // stride + 1)
            else:
                count = facts.simplify((room + stride - 1) // stride + 1)
                beyond = facts.decide(as_expr((count - 1) * stride - extent - first) >= 0)
                if beyond is None:
                    raise _needs_step(stride)
                count -= beyond
        if isinstance(count, int) and count == 1:  # what lies past the padding counts for nothing
            if not isinstance(extent, int):
                raise _needs_step(stride)
            kernel[i] = min(kernel[i], -(-(extent + first + last) // dilations[i]))
            span = (kernel[i] - 1) * dilations[i] + 1
        begin.append(first)
        end.append(last)
        needed = facts.larger(facts.simplify((count - 1) * stride + span - extent - first), 0)
        if not isinstance(needed, int):
            raise _needs_step(stride)
        reach.append(needed)
        out.append(count)
    return Windows(kernel, strides, dilations, begin, end, reach, out)


def same_padding(node: Node, extent: Any, stride: int, span: int) -> tuple[int, int]:
    """Return what ``auto_pad=SAME_*`` pads before and after an axis, the same for all extents."""
    facts = node.facts
    count = facts.simplify((extent + stride - 1) // stride)
    total = facts.larger(facts.simplify((count - 1) * stride + span - extent), 0)
    if not isinstance(total, int):
        raise _needs_step(stride)
    first = total // 2 if node.attribute("auto_pad") == "SAME_UPPER" else total - total // 2
    return first, total - first


def _needs_step(stride: int) -> Unsupported:
    return Unsupported(
        "whose padding depends on a symbolic extent",
        f"give its range a step that is a multiple of the strides, as in "
        f"--dim NAME=LOW..HIGH:{stride}, or bind it with --dim NAME=VALUE",
    )


def _require_static(node: Node) -> None:
    if not all(isinstance(extent, int) for extent in node.shape()[2:]):
        raise Unsupported("over symbolic extents", "bind them with --dim NAME=VALUE, or dims={...}")


def _is_left_symbolic(node: Node) -> bool:
    """Tell whether TVM counts the windows: over symbolic extents, without automatic padding."""
    is_static = all(isinstance(extent, int) for extent in node.shape()[2:])
    return not is_static and not node.attribute("auto_pad", "NOTSET").startswith("SAME")


@register("MaxPool")
def max_pool(node: Node) -> Any:
    """Convert MaxPool, with the places of the largest elements where they are read."""
    plain = not node.attribute("ceil_mode", 0) and node.attribute("auto_pad", "NOTSET") in (
        "NOTSET",
        "VALID",
    )
    if (plain or _is_left_symbolic(node)) and not node.uses(1):
        return None
    at = windows(node)
    rank = len(at.kernel)
    if rank > 3:
        raise Unsupported(f"over {rank} axes", "use 1 to 3 spatial axes")
    result = MAX_POOL[rank](
        node.inputs[0], at.kernel, at.strides, at.begin + at.reach, at.dilations
    )
    if not node.uses(1):
        return result
    _require_static(node)
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
    if _is_left_symbolic(node):
        return None
    at = windows(node)
    rank = len(at.kernel)
    counts_padding = bool(node.attribute("count_include_pad", 0))
    if rank > 3:
        raise Unsupported(f"over {rank} axes", "use 1 to 3 spatial axes")
    if counts_padding and any(r > e for r, e in zip(at.reach, at.end, strict=True)):
        _require_static(node)
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
