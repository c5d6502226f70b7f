"""Resampling along axes: indices and weights (taps), and Resize over symbolic extents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, te, tirx

from ...operators.spatial import DATA_LAYOUT
from ...registry import Unsupported
from ...shape_values.elements import Real, Unknown, real, rounded, to_integer
from ...shape_values.facts import as_expr
from ...tensor_types import accumulation_dtype, dtype_of
from ..node import Node


class Taps(NamedTuple):
    """Indices and weights of shape [out, taps], and where nothing lies below an output element."""

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray


@dataclass(frozen=True)
class Sampling:
    """How an axis is sampled, in ONNX's terms (operator Resize)."""

    mode: str  # ``nearest``, ``linear`` or ``cubic``
    coordinates: str  # ``coordinate_transformation_mode``
    rounding: str = "round_prefer_floor"  # ``nearest_mode``
    cubic_coefficient: float = -0.75  # ``cubic_coeff_a``
    # Attributes of these names.
    exclude_outside: bool = False
    antialias: bool = False

    def taps(
        self, extent: int, out: int, scale: float, region: tuple[float, float] = (0.0, 1.0)
    ) -> Taps:
        """Compute the taps of an axis.

        Parameters
        ----------
        scale
            As the model gives it; ``scale * extent`` need not be ``out``.
        region
            Start and end for ``tf_crop_and_resize``, 0 to 1.
        """
        place = _coordinates(self.coordinates, extent, out, scale, region)
        outside = np.zeros(out, bool)
        if self.coordinates == "tf_crop_and_resize":
            outside = (place < 0) | (place > extent - 1)
        if self.mode == "nearest":
            index = np.clip(_ROUNDING[self.rounding](place), 0, extent - 1).astype("int64")
            return Taps(index[:, None], np.ones((out, 1)), outside)
        stretch = min(scale, 1.0) if self.antialias else 1.0
        radius = int(np.ceil((1 if self.mode == "linear" else 2) / stretch))
        base = np.floor(place).astype("int64")
        indices = base[:, None] + np.arange(1 - radius, radius + 1)[None, :]
        weights = self._kernel((indices - place[:, None]) * stretch)
        if self.antialias:
            weights = weights / weights.sum(1, keepdims=True)
        if self.exclude_outside:
            weights = np.where((indices < 0) | (indices >= extent), 0.0, weights)
            total = weights.sum(1, keepdims=True)
            weights = weights / np.where(total == 0, 1.0, total)
        return Taps(np.clip(indices, 0, extent - 1), weights, outside)

    def _kernel(self, x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        if self.mode == "linear":
            return np.clip(1 - x, 0, None)
        a = self.cubic_coefficient
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _coordinates(
    mode: str, extent: int, out: int, scale: float, region: tuple[float, float]
) -> np.ndarray:
    """Return where each output element lies in the input, in float64."""
    x = np.arange(out, dtype="float64")
    length = scale * extent
    if mode == "align_corners":
        return np.zeros(out) if length == 1 else x * (extent - 1) / (length - 1)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        start, end = region
        if length == 1:
            return np.full(out, (start + end) * (extent - 1) / 2)
        return start * (extent - 1) + x * (end - start) * (extent - 1) / (length - 1)
    if mode == "pytorch_half_pixel" and length == 1:
        return np.full(out, -0.5)
    place = (x + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        place += extent / 2 * (1 - out / length)
    return place


_ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
COORDINATES = (
    *("align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    "tf_crop_and_resize",
)
ROUNDING = tuple(_ROUNDING)


op = relax.op
_BIND = "bind the extents with --dim NAME=VALUE, or dims={...}"
_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


def resize(node: Node, sampling: Sampling, scales: np.ndarray | None) -> Any:
    """Convert Resize or Upsample where extents, sizes or scales are symbolic.

    Parameters
    ----------
    node
        With ``scales`` and ``sizes`` as its third and fourth input, or before opset 11 with scales.
    sampling
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
    is_exact = factors is None or all(
        _is_exact(node, factor, shape[axis], out[axis])
        for axis, factor in zip(axes, factors, strict=True)
    )
    plain = (sampling.mode, sampling.coordinates, sampling.rounding)
    if plain == ("nearest", "asymmetric", "floor") and is_exact:
        return _nearest(node, shape, out, moved)
    if is_exact and _is_of_tvm(node, sampling, shape, out, moved):
        return _by_tvm(node, sampling, out)
    if sampling.antialias or sampling.coordinates == "tf_crop_and_resize":
        option = "antialias" if sampling.antialias else sampling.coordinates
        raise Unsupported(f"over symbolic extents, with {option}", _BIND)
    scales_ = dict(zip(axes, factors, strict=True)) if factors is not None else {}
    x = node.inputs[0]
    for axis in axes if factors is not None and not is_exact else moved:
        x = _along(node, sampling, x, axis, out[axis], scales_.get(axis))
    return x


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


def _is_of_tvm(
    node: Node, sampling: Sampling, shape: list[Any], out: list[Any], axes: list[int]
) -> bool:
    """Tell whether TVM is right: of whole scales of spatial axes."""
    return (
        sampling.coordinates in ("half_pixel", "asymmetric", "pytorch_half_pixel")
        and not sampling.antialias
        and not sampling.exclude_outside
        and len(shape) == 4
        and all(axis > 1 for axis in axes)
        and all(_is_whole(node, shape[axis], out[axis]) for axis in axes)
        and ("float" in node.dtype() or sampling.mode == "nearest")
    )


def _by_tvm(node: Node, sampling: Sampling, out: list[Any]) -> Any:
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


def _along(node: Node, sampling: Sampling, x: Any, axis: int, after: Any, factor: Any) -> Any:
    """Sample one axis at places that are computed from its extents, as ``Sampling.taps`` does."""
    dtype = dtype_of(x)
    wide = accumulation_dtype(dtype)
    out = as_expr(after)
    ratio = [as_expr(factor.over), as_expr(factor.under)] if isinstance(factor, Real) else []
    # Kernels know the extents of their tensors alone: those of others are loaded.
    numbers = node.emit(op.shape_to_tensor(relax.ShapeExpr([out, *ratio])))

    def sampled(data: te.Tensor, numbers: te.Tensor) -> te.Tensor:
        before, after = data.shape[axis], numbers[0]
        if factor is None:
            scale = _real(after) / _real(before)
        elif isinstance(factor, Real):
            scale = _real(numbers[1]) / _real(numbers[2])
        else:
            scale = tirx.const(float(factor), "float64")

        def read(at: Any, index: Any) -> Any:
            inside = tirx.max(tirx.min(index, before - 1), as_expr(0))
            return data(*at[:axis], inside, *at[axis + 1 :])

        def element(*at: Any) -> Any:
            place = _place(sampling.coordinates, _real(at[axis]), before, after, scale)
            if sampling.mode == "nearest":
                return read(at, tirx.Cast("int64", _ROUNDED[sampling.rounding](place)))
            first = tirx.floor(place)
            base = tirx.Cast("int64", first)
            reach = 1 if sampling.mode == "linear" else 2
            steps = range(1 - reach, reach + 1)
            weights = [_weight(sampling, tirx.abs(place - first - float(k))) for k in steps]
            if sampling.exclude_outside:
                weights = [
                    tirx.Select(tirx.all(base + k >= 0, base + k < before), w, _real(as_expr(0)))
                    for k, w in zip(steps, weights, strict=True)
                ]
                weights = [w / sum(weights[1:], weights[0]) for w in weights]
            terms = [
                read(at, base + k).astype(wide) * w.astype(wide)
                for k, w in zip(steps, weights, strict=True)
            ]
            return sum(terms[1:], terms[0]).astype(dtype)

        shape = [*data.shape[:axis], out, *data.shape[axis + 1 :]]
        return te.compute(shape, element, name="resize")

    return node.emit_te(sampled, x, numbers, primfunc_name_hint="resize_axis")


def _place(mode: str, x: Any, before: Any, after: Any, scale: Any) -> Any:
    """Return where an output element lies in the input."""
    length, zero = scale * _real(before), _real(as_expr(0))
    is_one = tirx.EQ(after, as_expr(1))
    if mode == "align_corners":
        steps = tirx.Select(is_one, _real(as_expr(1)), length - 1.0)
        return tirx.Select(is_one, zero, x * _real(before - 1) / steps)
    if mode == "asymmetric":
        return x / scale
    place = (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return tirx.Select(is_one, zero - 0.5, place)
    if mode == "half_pixel_symmetric":
        return place + _real(before) / 2.0 * (1.0 - _real(after) / length)
    return place


def _weight(sampling: Sampling, distance: Any) -> Any:
    if sampling.mode == "linear":
        return 1.0 - distance
    a = sampling.cubic_coefficient
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = ((a * distance - 5.0 * a) * distance + 8.0 * a) * distance - 4.0 * a
    return tirx.Select(distance <= 1.0, near, far)


def _real(value: Any) -> Any:
    return tirx.Cast("float64", value)


_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: tirx.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: tirx.floor(x + 0.5),
    "floor": tirx.floor,
    "ceil": tirx.ceil,
}
