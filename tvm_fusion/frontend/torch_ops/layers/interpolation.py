"""Convert interpolation of images and volumes."""

from typing import Any

import numpy as np
import sympy
import torch
from torch import fx
from tvm import relax

from ...registry import Unsupported
from ...tensor_types import is_float
from ..call import Call, bound, static
from ..registry import register

op = relax.op


def _ratio(after: int | torch.SymInt, before: int | torch.SymInt) -> int | None:
    """Divide extents, symbolic ones too; None where that is no whole number for certain."""
    large, small = (e if isinstance(e, int) else e.node.expr for e in (after, before))
    ratio = sympy.cancel(sympy.Integer(1) * large / small) if small != 0 else sympy.nan
    return int(ratio) if ratio.is_Integer and ratio > 0 else None


def _not_whole(node: fx.Node) -> Unsupported | None:
    """Refuse upsampling by other ratios than whole numbers, which resize2d floors differently."""
    before = node.args[0].meta["val"].shape[2:]
    after = node.meta["val"].shape[2:]
    scales = bound(node).get("scale_factors")
    ratios = [_ratio(a, b) for a, b in zip(after, before, strict=True)]
    if None not in ratios and (scales is None or list(scales) == ratios):
        return None
    return Unsupported("by ratios that are not integers")


@register("upsample_nearest2d.vec", refuses=_not_whole)
def upsample_nearest(call: Call) -> Any:
    """Repeat elements a whole number of times."""
    call.raw("output_size"), call.raw("scale_factors")
    x, before, after = call.tensor("input"), call.meta("input").shape[2:], call.out.shape[2:]
    if all(isinstance(e, int) for e in (*before, *after)):
        return _resize(call, "nearest_neighbor", "half_pixel", x)
    # resize2d divides symbolic extents in floating point.
    for axis, (a, b) in enumerate(zip(after, before, strict=True), 2):
        x = call.emit(op.repeat(x, _ratio(a, b), axis))
    return x


def _not_by_size(node: fx.Node) -> Unsupported | None:
    """Refuse an interpolation by another ratio than that of the extents, which resize2d takes.

    Torch takes a scale factor as it was given, rounded extents notwithstanding.
    """
    values = bound(node)
    before = node.args[0].meta["val"].shape[2:]
    after = node.meta["val"].shape[2:]
    if not all(isinstance(e, int) for e in (*before, *after)):
        return Unsupported("over symbolic extents")
    if node.args[0].meta["val"].dtype.itemsize < 4:
        return Unsupported("of a half type")
    scales = values.get("scale_factors")
    if values["align_corners"] or scales is None:
        return None
    is_exact = all(b * s == a for a, b, s in zip(after, before, scales, strict=True))
    return None if is_exact else Unsupported("by a scale that is not the ratio of the extents")


@register("upsample_bilinear2d.vec", refuses=_not_by_size)
def upsample_linear(call: Call) -> Any:
    """Interpolate between elements, corners aligned or not."""
    call.raw("output_size"), call.raw("scale_factors")
    mode = "align_corners" if call["align_corners"] else "half_pixel"
    return _resize(call, "linear", mode, call.tensor("input"))


def _resize(call: Call, method: str, mode: str, x: Any) -> Any:
    size = static(call.out.shape[2:])
    rounding = "floor" if method == "nearest_neighbor" else ""
    return op.image.resize2d(
        x,
        size,
        layout="NCHW",
        method=method,
        coordinate_transformation_mode="asymmetric" if rounding else mode,
        rounding_method=rounding or "round",
    )


@register("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def upsample_antialiased(call: Call) -> Any:
    """Resize with antialiasing: a product with a matrix of weights for each axis.

    The weights are torch's own: what becomes of the rows of an identity matrix.
    """
    fake, x = call.meta("self"), call.tensor("self")
    size, corners = static(call.out.shape[2:]), call["align_corners"]
    scales = [call["scales_h"], call["scales_w"]]
    call.raw("output_size")
    if not is_float(call.dtype) or 0 in fake.shape:
        raise Unsupported(f"of {call.dtype} numbers", "cast to a floating point type")
    before = static(fake.shape[2:])
    rows, columns = (
        _weights(call, before[a], size[a], corners, scales[a]).astype(call.dtype) for a in (0, 1)
    )
    narrow = call.emit(op.matmul(relax.const(rows, call.dtype), x))
    return op.matmul(narrow, relax.const(columns.T.copy(), call.dtype))


def _weights(call: Call, before: int, after: int, corners: bool, scale: float | None) -> np.ndarray:
    identity = torch.eye(before, dtype=torch.float64).reshape(1, 1, before, before)
    resized = call.node.target(identity, [after, before], corners, scale, None)
    return resized.reshape(after, before).numpy()


@register("grid_sampler_3d")
def sample_volume(call: Call) -> Any:
    """Sample volumes at points, which TVM takes with their coordinates first."""
    grid = call.emit(op.permute_dims(call.tensor("grid"), [0, 4, 1, 2, 3]))
    return op.image.grid_sample(
        call.tensor("input"),
        grid,
        method=("bilinear", "nearest")[call["interpolation_mode"]],
        layout="NCDHW",
        padding_mode=("zeros", "border", "reflection")[call["padding_mode"]],
        align_corners=bool(call["align_corners"]),
    )
