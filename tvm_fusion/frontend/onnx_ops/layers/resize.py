"""Resize and Upsample for all scales, sizes and attributes of ONNX.

TVM derives scales from the extents, whatever the model says, and ignores some attributes; it is
right, and stays in charge, where scales are exact and the attributes are the common ones.
"""

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...registry import Unsupported
from ...tensor_types import accumulation_dtype, dtype_of
from ..node import Node
from ..registry import other_than, register
from . import symbolic_resize as symbolic
from .resample import COORDINATES, ROUNDING, Sampling, Taps

op = relax.op
_MODES = other_than(
    mode=("nearest", "linear", "cubic"),
    coordinate_transformation_mode=COORDINATES,
    nearest_mode=ROUNDING,
)


@register("Resize", takes_extents=True, refuses=_MODES)
def resize(node: Node) -> Any:
    """Convert Resize, by TVM's operators where they compute the same."""
    if node.opset < 11:
        return _resample(node, _before_opset_11(node), node.required_constant(1, "scales"), None)
    sampling = Sampling(
        mode=node.attribute("mode", "nearest"),
        coordinates=node.attribute("coordinate_transformation_mode", "half_pixel"),
        rounding=node.attribute("nearest_mode", "round_prefer_floor"),
        cubic_coefficient=node.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attribute("exclude_outside", 0)),
        antialias=bool(node.attribute("antialias", 0)),
    )
    scales, _ = node.constant(2), node.inputs[1]  # regions, of one mode
    if scales is not None and not scales.size:
        scales = None
    is_computed = any(node.has(i) and node.constant(i) is None for i in (2, 3))
    if _is_symbolic(node) or is_computed:
        _require_floats(node, sampling)
        return symbolic.resize(node, sampling, scales)
    return _resample(node, sampling, scales, node.constant(3))


@register("Upsample", takes_extents=True, refuses=_MODES)
def upsample(node: Node) -> Any:
    """Convert Upsample, in which the scales are an attribute or the second input."""
    scales = node.attribute("scales")
    if scales is None:
        scales = node.required_constant(1, "scales")
    return _resample(node, _before_opset_11(node), np.array(scales, "float32"), None)


def _before_opset_11(node: Node) -> Sampling:
    return Sampling(node.attribute("mode", "nearest"), "asymmetric", "floor")


def _is_symbolic(node: Node) -> bool:
    return any(not isinstance(extent, int) for extent in node.shape())


def _require_floats(node: Node, sampling: Sampling) -> None:
    if sampling.mode != "nearest" and "float" not in node.dtype():
        raise Unsupported(
            f"with mode {sampling.mode} on {node.dtype()}", "cast to float32 before, and back after"
        )


def _resample(node: Node, sampling: Sampling, scales: Any, sizes: Any) -> Any:
    _require_floats(node, sampling)
    if _is_symbolic(node):
        return symbolic.resize(node, sampling, scales)
    axes, factors, out = _extents(node, scales, sizes)
    shape = node.static_shape()
    if node.op_type == "Resize" and node.opset >= 11 and _by_tvm(node, sampling, factors, out):
        return None
    regions = _regions(node, axes) if sampling.coordinates == "tf_crop_and_resize" else {}
    fill = node.attribute("extrapolation_value", 0.0)
    x = node.inputs[0]
    for axis in axes:
        region = regions.get(axis, (0.0, 1.0))
        if factors[axis] == 1.0 and out[axis] == shape[axis] and region == (0.0, 1.0):
            continue
        taps = sampling.taps(shape[axis], out[axis], factors[axis], region)
        x = _along(node, x, axis, taps, fill)
    return x


def _by_tvm(node: Node, sampling: Sampling, factors: list[float], out: list[int]) -> bool:
    shape = node.static_shape()
    exact = all(f * e == o for f, e, o in zip(factors, shape, out, strict=True))
    whole = all(o % e == 0 for e, o in zip(shape, out, strict=True))
    return (
        exact
        and out[:2] == shape[:2]
        and len(shape) in (3, 4, 5)
        and node.dtype() == "float32"
        and sampling.coordinates in ("half_pixel", "asymmetric", "align_corners")
        and not (sampling.coordinates == "align_corners" and 1 in out)
        and not sampling.antialias
        and not sampling.exclude_outside
        and node.attribute("axes") is None
        and node.attribute("keep_aspect_ratio_policy", "stretch") == "stretch"
        # TVM's coordinates are float32: next to a half, or a whole number, they may round astray.
        and (sampling.mode != "nearest" or (whole and sampling.coordinates != "align_corners"))
    )


def _extents(node: Node, scales: Any, sizes: Any) -> tuple[list[int], list[float], list[int]]:
    """Return the axes that are resized, and scale and new extent of every axis."""
    shape = node.static_shape()
    axes = [axis % len(shape) for axis in node.attribute("axes") or range(len(shape))]
    factors, out = [1.0] * len(shape), list(shape)
    if scales is not None:
        for axis, scale in zip(axes, scales, strict=True):
            factors[axis] = float(scale)
            # The product in the precision of the scales: 0.6 of 5 is 3.
            out[axis] = int(np.floor(np.float32(scale) * np.float32(shape[axis])))
        return axes, factors, out
    for axis, size in zip(axes, sizes, strict=True):
        factors[axis], out[axis] = int(size) / shape[axis], int(size)
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        choose = min if policy == "not_larger" else max
        scale = choose(factors[axis] for axis in axes)
        for axis in axes:
            factors[axis], out[axis] = scale, int(np.floor(scale * shape[axis] + 0.5))
    return axes, factors, out


def _regions(node: Node, axes: list[int]) -> dict[int, tuple[float, float]]:
    region = node.required_constant(1, "roi").reshape(-1)
    half = len(region) // 2
    return {axis: (float(region[i]), float(region[half + i])) for i, axis in enumerate(axes)}


def _along(node: Node, x: Any, axis: int, taps: Taps, fill: float) -> Any:
    """Emit the weighted sum over the taps of one axis."""
    dtype = dtype_of(x)
    wide = accumulation_dtype(dtype)
    count = taps.indices.shape[1]
    outside = taps.outside.any()

    def weighted(data: te.Tensor, indices: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        shape = [*data.shape]
        shape[axis] = indices.shape[0]
        k = te.reduce_axis((0, count), "tap")

        def element(*at: Any) -> Any:
            o = at[axis]
            if count == 1:
                value = data(*at[:axis], indices[o, 0], *at[axis + 1 :])
            else:
                value = data(*at[:axis], indices[o, k], *at[axis + 1 :]).astype(wide)
                value = te.sum(value * rest[0][o, k], axis=k)
            return value

        result = te.compute(shape, element, name="resize")
        if not outside and (count == 1 or wide == dtype):
            return result

        def finish(*at: Any) -> Any:
            value = result(*at).astype(dtype)
            if outside:
                value = tirx.Select(rest[-1][at[axis]] != 0, tirx.const(fill, dtype), value)
            return value

        return te.compute(shape, finish, name="resize_result")

    arguments = [relax.const(taps.indices.astype("int32"), "int32")]
    if count > 1:
        arguments.append(relax.const(taps.weights.astype(wide), wide))
    if outside:
        arguments.append(relax.const(taps.outside.astype("int32"), "int32"))
    return node.emit_te(weighted, x, *arguments, primfunc_name_hint="resize_axis")
