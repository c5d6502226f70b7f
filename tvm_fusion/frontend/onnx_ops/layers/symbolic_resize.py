"""Resize where extents, sizes or scales are symbolic, or known only when the model runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...operators.spatial import DATA_LAYOUT
from ...registry import Unsupported
from ...shape_values.elements import Real, Unknown, real, rounded, to_integer
from ...shape_values.facts import as_expr, at
from ...tensor_types import accumulation_dtype, dtype_of
from ..node import Node
from .resample import TIE, Sampling

op = relax.op
_BIND = "bind the extents with --dim NAME=VALUE, or dims={...}"
_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


def resize(node: Node, sampling: Sampling, scales: np.ndarray | None) -> Any:
    """Convert Resize or Upsample where extents, sizes or scales are symbolic, or computed.

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
    has_scales = factors is not None or (node.has(2) and node.shape(2) != [0])
    if factors is None and has_scales and node.known[2] is not None:
        factors = list(node.known[2].elements.flat)
    if factors is not None:
        found = zip(axes, factors, strict=True)
        sizes = [_scaled(node, shape[axis], factor) for axis, factor in found]
    elif has_scales or node.extents(3) is None:
        # Images and channels are as many as before: what reads them needs the numbers.
        is_whole = len(axes) == len(shape) > 2
        sizes = [shape[a] if is_whole and a < 2 else None for a in axes]
    else:
        sizes = node.extents(3) or []
    if any(size is None for size in sizes):
        sizes, factors = _computed(node, axes, sizes, factors, has_scales)
    for axis, size in zip(axes, sizes, strict=True):
        out[axis] = size
    moved = [a for a in axes if not node.facts.equal(shape[a], out[a])]
    scales_ = dict(zip(axes, factors, strict=True)) if factors is not None else {}
    scaled = [a for a, s in scales_.items() if not _is_exact(node, s, shape[a], out[a])]
    is_exact = not scaled
    plain = (sampling.mode, sampling.coordinates, sampling.rounding)
    if plain == ("nearest", "asymmetric", "floor") and is_exact:
        return _nearest(node, shape, out, moved)
    if is_exact and _is_of_tvm(node, sampling, shape, out, moved):
        return _by_tvm(node, sampling, out)
    if sampling.antialias or sampling.coordinates == "tf_crop_and_resize":
        option = "antialias" if sampling.antialias else sampling.coordinates
        raise Unsupported(f"over symbolic extents, with {option}", _BIND)
    x = node.inputs[0]
    for axis in axes:
        if axis in moved or axis in scaled:
            x = _along(node, sampling, x, axis, out[axis], scales_.get(axis))
    return x


def _scaled(node: Node, extent: Any, factor: Any) -> Any:
    """Return the extent that a scale gives, rounded down; None where float32 rounds otherwise."""
    if not isinstance(extent, int) or isinstance(factor, Real):
        try:
            length = Real.of_integer(extent, "float32")
            product = real("Mul", node.facts, length, factor)
            return to_integer(node.facts, rounded("Floor", node.facts, product))
        except Unknown:
            return None
    return int(np.floor(np.float32(factor) * np.float32(extent)))


def _computed(
    node: Node, axes: list[int], known: list[Any], factors: list[Any] | None, has_scales: bool
) -> tuple[list[Any], list[Any] | None]:
    """Return extents that are read when the model runs, and scales: loaded where not known."""
    kept = [i for i, size in enumerate(known) if size is not None]
    own = [as_expr(node.shape()[axis]) for axis in axes]
    have = node.emit(op.shape_to_tensor(relax.ShapeExpr(own)))
    if not has_scales:
        wanted = node.emit(node.cast(node.inputs[3], "int64"))
    else:
        if not all(_is_quotient(node, factor) for factor in factors or []):
            raise Unsupported("over symbolic extents, by scales of several roundings", _BIND)
        scales = node.emit(node.cast(node.inputs[2], "float32"))
        product = node.emit(op.multiply(scales, node.emit(op.astype(have, "float32"))))
        wanted = node.emit(op.astype(node.emit(op.floor(product)), "int64"))
    positive = node.emit(op.greater(wanted, relax.const(0, "int64")))
    conditions = [positive, node.is_small(wanted)]
    for i in kept:
        size = node.emit(op.shape_to_tensor(relax.ShapeExpr([as_expr(known[i])])))
        conditions.append(node.emit(op.equal(_element(node, wanted, i), size)))
        if has_scales and factors is None:
            is_one = op.equal(_element(node, scales, i), relax.const(1, "float32"))
            conditions.append(node.emit(is_one))
    fits = conditions[0]
    for condition in conditions[1:]:
        fits = node.emit(op.logical_and(fits, condition))
    sizes = node.computed_extents(wanted, fits, known)
    if has_scales and factors is None:
        factors = [
            1.0 if i in kept else node.emit(op.astype(_element(node, scales, i), "float64"))
            for i in range(len(axes))
        ]
    return sizes, factors


def _element(node: Node, tensor: Any, i: int) -> Any:
    return node.emit(op.strided_slice(tensor, [0], [i], [i + 1]))


def _is_quotient(node: Node, factor: Any) -> bool:
    """Tell whether a scale is what one division in float32 gives, as it is computed here."""
    if not isinstance(factor, Real):
        return True
    extents = node.facts.samples(factor.variables)
    if extents is None:
        return False
    over, under = (np.float32(at(part, extents)) for part in (factor.over, factor.under))
    return bool(np.all(over / under == factor.run(extents)))


def _is_exact(node: Node, factor: Any, before: Any, after: Any) -> bool:
    """Tell whether extents have the ratio of the scale, which coordinates are then made of."""
    if isinstance(factor, relax.Expr):
        return False
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
    """Take the nearest elements below, by whole multiples in one kernel."""
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
        before, after, steps = (
            node.emit(op.astype(node.emit(numbers), "float32"))
            for numbers in (
                op.shape_to_tensor(relax.ShapeExpr([as_expr(shape[axis])])),
                op.shape_to_tensor(relax.ShapeExpr([as_expr(out[axis])])),
                op.arange(out[axis], dtype="int64"),
            )
        )
        places = node.emit(op.divide(steps, node.emit(op.divide(after, before))))
        indices = node.emit(op.astype(node.emit(op.floor(places)), "int64"))
        x = node.emit(op.take(x, indices, axis))
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
    loaded = [factor] if isinstance(factor, relax.Expr) else []
    real_dtype = "float32" if sampling.mode == "nearest" else "float64"  # as Sampling.taps

    def real(value: Any) -> Any:
        return tirx.Cast(real_dtype, value)

    def sampled(data: te.Tensor, numbers: te.Tensor, *scales: te.Tensor) -> te.Tensor:
        before, after = data.shape[axis], numbers[0]
        if scales:
            scale = real(scales[0][0])
        elif factor is None:
            scale = real(after) / real(before)
        elif isinstance(factor, Real):
            scale = real(numbers[1]) / real(numbers[2])
        else:
            scale = tirx.const(float(factor), real_dtype)

        def read(at: Any, index: Any) -> Any:
            inside = tirx.max(tirx.min(index, before - 1), as_expr(0))
            return data(*at[:axis], inside, *at[axis + 1 :])

        def element(*at: Any) -> Any:
            place = _place(sampling.coordinates, at[axis], before, after, scale, real)
            if sampling.mode == "nearest":
                return read(at, tirx.Cast("int64", _ROUNDED[sampling.rounding](place)))
            first = tirx.floor(place)
            base = tirx.Cast("int64", first)
            reach = 1 if sampling.mode == "linear" else 2
            steps = range(1 - reach, reach + 1)
            weights = [_weight(sampling, tirx.abs(place - first - float(k))) for k in steps]
            if sampling.exclude_outside:
                weights = [
                    tirx.Select(tirx.all(base + k >= 0, base + k < before), w, real(as_expr(0)))
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

    return node.emit_te(sampled, x, numbers, *loaded, primfunc_name_hint="resize_axis")


def _place(mode: str, at: Any, before: Any, after: Any, scale: Any, real: Any) -> Any:
    """Return where an output element lies in the input."""
    x, half = real(at), tirx.const(0.5, scale.ty.dtype)
    length, zero = scale * real(before), real(as_expr(0))
    is_one = tirx.EQ(after, as_expr(1))
    if mode == "align_corners":
        steps = tirx.Select(is_one, real(as_expr(1)), length - real(as_expr(1)))
        return tirx.Select(is_one, zero, x * real(before - 1) / steps)
    if mode == "asymmetric":
        return x / scale
    place = (x + half) / scale - half
    if mode == "pytorch_half_pixel":
        return tirx.Select(is_one, zero - half, place)
    if mode == "half_pixel_symmetric":
        return place + real(before) * half * (real(as_expr(1)) - real(after) / length)
    return place


def _weight(sampling: Sampling, distance: Any) -> Any:
    if sampling.mode == "linear":
        return 1.0 - distance
    a = sampling.cubic_coefficient
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = ((a * distance - 5.0 * a) * distance + 8.0 * a) * distance - 4.0 * a
    return tirx.Select(distance <= 1.0, near, far)


def _next_above(x: Any, is_above: Any) -> Any:
    return tirx.Select(is_above, tirx.floor(x) + 1.0, tirx.floor(x))


_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: _next_above(x, x - tirx.floor(x) - 0.5 > TIE),
    "round_prefer_ceil": lambda x: _next_above(x, x - tirx.floor(x) - 0.5 >= -TIE),
    "floor": tirx.floor,
    "ceil": tirx.ceil,
}
