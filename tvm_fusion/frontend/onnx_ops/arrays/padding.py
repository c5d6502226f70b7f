"""Convert Pad by widths that are symbolic, or computed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...registry import Unsupported
from ...shape_values.facts import as_expr
from ..node import Node
from ..registry import register


@register("Pad", takes_extents=True)
def pad(node: Node) -> Any:
    """Convert Pad whose widths or value are computed or depend on dimensions; others are TVM's."""
    if node.opset < 11:
        return None
    widths, shape, mode = node.extents(1), node.shape(), node.attribute("mode", "constant")
    computes_value = node.has(2) and node.constant(2) is None
    computes_widths = node.constant(1) is None and (widths is None or node.known_symbolic(1))
    if not computes_value and not computes_widths:
        return None
    axes = node.extents(3) if node.has(3) else list(range(len(shape)))
    if axes is None or not all(isinstance(axis, int) for axis in axes):
        raise Unsupported("whose axes are computed", "make the axes an initializer")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise Unsupported(f"with mode {mode}", "use constant, edge, reflect or wrap")
    before: list[Any] = [0] * len(shape)
    out = list(shape)
    axes = [axis % len(shape) for axis in axes]
    if widths is None:
        firsts, extents = _computed(node, axes)
    else:
        firsts, lasts = widths[: len(axes)], widths[len(axes) :]
        ends = zip(axes, firsts, lasts, strict=True)
        extents = [node.facts.simplify(shape[axis] + a + b) for axis, a, b in ends]
    for axis, first, extent in zip(axes, firsts, extents, strict=True):
        before[axis], out[axis] = first, extent
    fill = node.inputs[2] if node.has(2) and mode == "constant" else None
    if fill is None:
        fill = relax.const(np.zeros((), node.dtype()), node.dtype())
    fill = node.emit(relax.op.reshape(fill, relax.ShapeExpr([])))
    kept = _kept(node, before, shape, out)

    def padded(x: te.Tensor, value: te.Tensor, before: list[Any], out: list[Any]) -> te.Tensor:
        def element(*at: Any) -> Any:
            place, inside = _source(at, before, x.shape, kept, mode)
            if mode == "constant":
                return tirx.if_then_else(inside, x(*place), value())
            return x(*place)

        return te.compute(out, element, name="padded")

    sizes = _arguments(before, out)
    return node.emit_te(padded, node.inputs[0], fill, *sizes, primfunc_name_hint="pad")


def _computed(node: Node, axes: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Return variables for widths before each axis, and its extent then, known at run time."""
    count, shape = len(axes), node.shape()
    widths = node.emit(node.cast(node.inputs[1], "int64"))
    first, last = (
        node.emit(relax.op.strided_slice(widths, [0], [i], [i + count])) for i in (0, count)
    )
    whole = node.emit(relax.op.shape_to_tensor(relax.ShapeExpr([shape[axis] for axis in axes])))
    extents = node.emit(relax.op.add(relax.op.add(first, last), whole))
    others = [extent for axis, extent in enumerate(shape) if axis not in axes]
    fits = relax.op.greater_equal(extents, relax.const(0, "int64"))
    fits = relax.op.logical_and(fits, node.is_small(extents, others))
    both = node.emit(relax.op.concat([first, extents], 0))
    read = node.computed_extents(both, fits, [None] * (2 * count))
    return read[:count], read[count:]


def framed(node: Node, x: Any, begin: Sequence[Any], spans: Sequence[Any], fill: float) -> Any:
    """Put a tensor into spatial extents that windows cover, which may cut off its end.

    Parameters
    ----------
    node
    x : tvm.relax.Expr
        Batch, channels and spatial axes.
    begin, spans : sequence of int or tvm.ir.Expr
        Elements before each spatial axis, and its extent then.
    fill
        Value of elements outside of the tensor.
    """
    shape = list(x.ty.shape)
    before = [0, 0, *begin]
    extents = [*shape[:2], *(node.facts.simplify(span) for span in spans)]
    kept = _kept(node, before, shape, extents)

    def frame(x: te.Tensor, before: list[Any], extents: list[Any]) -> te.Tensor:
        def element(*at: Any) -> Any:
            place, inside = _source(at, before, x.shape, kept, "constant")
            return tirx.if_then_else(inside, x(*place), tirx.const(fill, x.dtype))

        return te.compute(extents, element, name="framed")

    return node.emit_te(frame, x, *_arguments(before, extents), primfunc_name_hint="framed")


def _kept(node: Node, before: Sequence[Any], shape: Sequence[Any], out: Sequence[Any]) -> list[int]:
    """List the axes that stay as they are."""
    pairs = enumerate(zip(before, shape, out, strict=True))
    equal = node.facts.equal
    return [axis for axis, (first, own, new) in pairs if equal(first, 0) and equal(own, new)]


def _arguments(*extents: Sequence[Any]) -> list[Any]:
    """Pass extents to a kernel, which knows no variables but those of its arguments."""
    return [relax.ShapeExpr([as_expr(extent) for extent in each]) for each in extents]


def _source(
    at: Sequence[Any], before: Sequence[Any], shape: Sequence[Any], kept: Sequence[int], mode: str
) -> tuple[list[Any], Any]:
    """Return which element is read, and whether there is one."""
    place, inside = list(at), tirx.const(True, "bool")
    for axis, (first, extent) in enumerate(zip(before, shape, strict=True)):
        if axis in kept:
            continue
        from_start = at[axis] - first
        if mode == "constant":
            place[axis] = from_start
            inside = tirx.all(inside, from_start >= 0, from_start < extent)
        elif mode == "edge":
            place[axis] = tirx.max(tirx.min(from_start, extent - 1), as_expr(0))
        elif mode == "wrap":
            place[axis] = tirx.floormod(from_start, extent)
        else:
            period = tirx.max(extent - 1, as_expr(1)) * 2
            step = tirx.floormod(from_start, period)
            place[axis] = tirx.min(tirx.min(step, period - step), extent - 1)
    return place, inside
