"""Resize and Upsample over symbolic extents."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te

from ..registry import Unsupported
from ..shape_values.elements import Real, Unknown, real, rounded, to_integer
from ..shape_values.facts import as_expr
from ..spatial import DATA_LAYOUT
from .node import Node
from .resample import Sampling

op = relax.op
_BIND = "bind the extents with --dim NAME=VALUE, or dims={...}"
_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


def resize(node: Node, sampling: Sampling, scales: np.ndarray | None) -> Any:
    """Convert Resize or Upsample where extents, sizes or scales are symbolic.

    Parameters
    ----------
    node : Node
        With ``scales`` and ``sizes`` as its third and fourth input, or before opset 11 with scales.
    sampling : Sampling
        What its attributes ask for.
    """
    shape = node.shape()
    axes = [axis % len(shape) for axis in node.attribute("axes") or range(len(shape))]
    out = list(shape)
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise Unsupported(f"over symbolic extents, with {policy}", _BIND)
    factors = None if scales is None else list(scales)
    if factors is None:
        known = node.known[2] if len(node.known) > 2 else None
        if known is not None and known.elements.size:
            factors = list(known.elements.flat)
    if factors is not None:
        for axis, factor in zip(axes, factors, strict=True):
            out[axis] = _scaled(node, shape[axis], factor)
    else:
        sizes = node.extents(3)
        if sizes is None:
            raise Unsupported("whose sizes are computed", "make sizes an initializer")
        for axis, size in zip(axes, sizes, strict=True):
            out[axis] = size
    moved = [a for a in axes if not node.facts.equal(shape[a], out[a])]
    plain = (sampling.mode, sampling.coordinates, sampling.rounding)
    if plain == ("nearest", "asymmetric", "floor"):
        if factors is not None and any(
            not _is_exact(node, factor, shape[axis], out[axis])
            for axis, factor in zip(axes, factors, strict=True)
        ):
            raise Unsupported("over symbolic extents, with scales that do not divide", _BIND)
        return _nearest(node, shape, out, moved)
    return _by_tvm(node, sampling, shape, out, moved)


def _scaled(node: Node, extent: Any, factor: Any) -> Any:
    """Return the extent that a scale gives, rounded down."""
    if not isinstance(extent, int) or isinstance(factor, Real):
        try:
            length = Real.of_integer(extent, "float32")
            product = real("Mul", node.facts, length, factor)
            return to_integer(node.facts, rounded("Floor", node.facts, product))
        except Unknown as error:
            raise Unsupported(f"over symbolic extents, by a scale of {factor}", _BIND) from error
    return int(np.floor(np.float32(factor) * np.float32(extent)))


def _is_exact(node: Node, factor: Any, before: Any, after: Any) -> bool:
    """Tell whether extents have the ratio of the scale, which coordinates are then made of."""
    if isinstance(factor, Real):
        over, under = factor.over, factor.under
    else:
        constant = Real.of_constant(np.float32(factor))
        over, under = constant.over, constant.under
    return bool(node.facts.equal(node.facts.simplify(before * over), after * under))


def _is_whole(node: Node, before: Any, after: Any) -> int | None:
    """Return by how much an extent is multiplied, None where that is no whole number."""
    if isinstance(before, int) and isinstance(after, int):
        return after // before if after % before == 0 else None
    for times in range(1, 65):
        if node.facts.equal(node.facts.simplify(before * times), after):
            return times
    return None


def _nearest(node: Node, shape: list[Any], out: list[Any], axes: list[int]) -> Any:
    """Take the nearest elements below: ``i * before // after``, so that levels are joined."""
    found = ((axis, _is_whole(node, shape[axis], out[axis])) for axis in axes)
    whole = {axis: times for axis, times in found if times is not None}
    extents = [out[axis] if axis in whole else extent for axis, extent in enumerate(shape)]

    def repeated(x: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            return x(*(i // whole.get(axis, 1) for axis, i in enumerate(at)))

        return te.compute([as_expr(extent) for extent in extents], element, name="resize")

    x = node.inputs[0]
    if whole:
        x = node.emit_te(repeated, x, primfunc_name_hint="resize_nearest")
    for axis in axes:
        if axis in whole:
            continue
        before, after = (
            node.emit(op.squeeze(node.emit(op.shape_to_tensor(relax.ShapeExpr([e]))), [0]))
            for e in (as_expr(shape[axis]), as_expr(out[axis]))
        )
        steps = node.emit(op.multiply(op.arange(out[axis], dtype="int64"), before))
        x = node.emit(op.take(x, node.emit(op.floor_divide(steps, after)), axis))
    return x


def _by_tvm(
    node: Node, sampling: Sampling, shape: list[Any], out: list[Any], axes: list[int]
) -> Any:
    """Leave whole scales of spatial axes to TVM, which is right there."""
    common = (
        sampling.coordinates in ("half_pixel", "asymmetric", "pytorch_half_pixel")
        and not sampling.antialias
        and not sampling.exclude_outside
        and len(shape) == 4
        and all(axis > 1 for axis in axes)
        and all(_is_whole(node, shape[axis], out[axis]) for axis in axes)
        and ("float" in node.dtype() or sampling.mode == "nearest")
    )
    if not common:
        raise Unsupported("over symbolic extents, with scales or modes that need them", _BIND)
    return op.image.resize2d(
        node.inputs[0],
        size=relax.ShapeExpr([as_expr(extent) for extent in out[2:]]),
        roi=[0.0] * 4,
        layout=DATA_LAYOUT[2],
        method=_METHODS[sampling.mode],
        coordinate_transformation_mode=sampling.coordinates,
        rounding_method=sampling.rounding,
        cubic_alpha=sampling.cubic_coefficient,
        cubic_exclude=0,
        extrapolation_value=0.0,
    )
