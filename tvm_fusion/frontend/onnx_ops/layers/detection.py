"""Convert RoiAlign and NonMaxSuppression."""

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...registry import Unsupported
from ..node import Node
from ..registry import register

op = relax.op


@register("RoiAlign")
def roi_align(node: Node) -> Any:
    """Convert RoiAlign with mode max; averages are left to TVM.

    ONNX's reference takes the largest of the four weighted neighbours of every sample, not the
    largest of the interpolated samples; so does ONNX Runtime.
    """
    mode = node.attribute("mode", "avg")
    if mode == "avg":
        if (
            node.attribute("spatial_scale", 1.0) != 1.0
            and node.attribute(
                "coordinate_transformation_mode",
                "half_pixel" if node.opset >= 16 else "output_half_pixel",
            )
            == "half_pixel"
        ):
            # TVM shifts by half a pixel before it scales.
            return _aligned_average(node)
        return None
    ratio = node.attribute("sampling_ratio", 0)
    if ratio <= 0:
        raise Unsupported(
            "with mode max and an adaptive sampling_ratio", "set sampling_ratio to 1 or more"
        )
    return node.emit_te(
        lambda x, rois, batch: _largest(node, x, rois, batch, ratio),
        *node.inputs,
        primfunc_name_hint="roi_align_max",
    )


def _aligned_average(node: Node) -> Any:
    scale = node.attribute("spatial_scale", 1.0)
    rois = op.multiply(node.inputs[1], relax.const(scale, node.dtype(1)))
    rois = op.subtract(rois, relax.const(0.5, node.dtype(1)))
    batch = op.astype(op.expand_dims(node.inputs[2], 1), node.dtype(1))
    return op.vision.roi_align(
        node.inputs[0],
        op.concat([batch, rois], 1),
        pooled_size=(node.attribute("output_height", 1), node.attribute("output_width", 1)),
        spatial_scale=1.0,
        sample_ratio=node.attribute("sampling_ratio", 0),
        aligned=True,
        layout="NCHW",
        mode="avg",
    )


def _largest(node: Node, x: Any, rois: Any, batch: Any, ratio: int) -> te.Tensor:
    height, width = x.shape[2], x.shape[3]
    rows, columns = node.attribute("output_height", 1), node.attribute("output_width", 1)
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    half = node.attribute("coordinate_transformation_mode", default) == "half_pixel"
    scale = tirx.const(node.attribute("spatial_scale", 1.0), x.dtype)
    shift = tirx.const(0.5 if half else 0.0, x.dtype)
    sy, sx = te.reduce_axis((0, ratio), "sy"), te.reduce_axis((0, ratio), "sx")

    def sample(r: Any, low: int, bins: int, bin_index: Any, step: Any) -> Any:
        start = rois[r, low] * scale - shift
        extent = rois[r, low + 2] * scale - shift - start
        if not half:
            extent = te.max(extent, tirx.const(1, x.dtype))
        size = extent / bins
        return (
            start
            + bin_index.astype(x.dtype) * size
            + (step.astype(x.dtype) + tirx.const(0.5, x.dtype)) * size / ratio
        )

    def neighbours(at: Any, extent: Any) -> tuple[Any, Any, Any, Any]:
        at = te.max(at, tirx.const(0, x.dtype))
        low = te.min(tirx.Cast("int32", te.floor(at)), extent - 1)
        high = te.min(low + 1, extent - 1)
        weight = tirx.Select(low >= extent - 1, tirx.const(0, x.dtype), at - low.astype(x.dtype))
        return low, high, 1 - weight, weight

    def element(r: Any, c: Any, ph: Any, pw: Any) -> Any:
        y, z = sample(r, 1, rows, ph, sy), sample(r, 0, columns, pw, sx)
        outside = tirx.any(
            y < -1.0, y > height.astype(x.dtype), z < -1.0, z > width.astype(x.dtype)
        )
        y0, y1, v0, v1 = neighbours(y, height)
        x0, x1, w0, w1 = neighbours(z, width)
        n = tirx.Cast("int32", batch[r])
        values = [
            a * b * x[n, c, i, j] for i, a in ((y0, v0), (y1, v1)) for j, b in ((x0, w0), (x1, w1))
        ]
        best = te.max(te.max(values[0], values[1]), te.max(values[2], values[3]))
        return te.max(tirx.Select(outside, tirx.const(0, x.dtype), best), axis=[sy, sx])

    return te.compute((rois.shape[0], x.shape[1], rows, columns), element, name="roi_align_max")


@register("NonMaxSuppression")
def non_max_suppression(node: Node) -> Any:
    """Convert NonMaxSuppression, whose bounds have to be constants; absent ones are ONNX's.

    TVM's converter takes values of its own where a bound is absent or computed.
    """
    names = ("max_output_boxes_per_class", "iou_threshold", "score_threshold")
    defaults = (0, 0.0, -np.inf)
    largest, overlap, score = (
        node.required_constant(2 + i, name).reshape(-1)[0] if node.has(2 + i) else default
        for i, (name, default) in enumerate(zip(names, defaults, strict=True))
    )
    boxes = node.inputs[0]
    if node.attribute("center_point_box", 0):
        x, y, w, h = (op.strided_slice(boxes, [2], [i], [i + 1]) for i in range(4))
        two = relax.const(2, node.dtype())
        half_w, half_h = op.divide(w, two), op.divide(h, two)
        corners = [
            op.subtract(y, half_h),
            op.subtract(x, half_w),
            op.add(y, half_h),
            op.add(x, half_w),
        ]
        boxes = node.emit(op.concat(corners, 2))
    found = node.emit(
        op.vision.all_class_non_max_suppression(
            boxes,
            node.inputs[1],
            relax.const(int(largest), "int64"),
            # ONNX suppresses above the threshold, TVM from it on.
            relax.const(np.nextafter(np.float32(overlap), np.float32(np.inf)), "float32"),
            relax.const(float(score), "float32"),
            output_format="onnx",
        )
    )
    return node.emit(relax.TupleGetItem(found, 0))
