"""Convert DeformConv: samples between pixels, then a product with the weights."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from ..registry import Unsupported
from .node import Node
from .registry import register

op = relax.op


@register("DeformConv")
def deformable_convolution(node: Node) -> Any:
    """Convert DeformConv over two axes.

    ::

        s[n, c, k, o] = mask[n, c, k, o] * bilinear(x[n, c], o * stride - pad + k * dil + offset)
        y[n, m, o] = sum over c of m's group and k of  w[m, c, k] * s[n, c, k, o] + b[m]
    """
    shape, weight = node.static_shape(), node.static_shape(1)
    if len(shape) != 4:
        raise Unsupported(f"over {len(shape) - 2} axes", "use two spatial axes")
    kernel = list(node.attribute("kernel_shape") or weight[2:])
    strides = list(node.attribute("strides") or [1, 1])
    dilations = list(node.attribute("dilations") or [1, 1])
    pads = list(node.attribute("pads") or [0] * 4)
    groups, offset_groups = node.attribute("group", 1), node.attribute("offset_group", 1)
    batch, channels, height, width = shape
    out = node.static_shape(2)[2:]
    taps = kernel[0] * kernel[1]
    dtype = node.dtype()
    per_offset = channels // offset_groups
    bounds = (height, width)

    def sampled(x: te.Tensor, offset: te.Tensor, *masks: te.Tensor) -> te.Tensor:
        def element(n: Any, c: Any, k: Any, i: Any, j: Any) -> Any:
            group = tirx.floordiv(c, per_offset)
            steps = (tirx.floordiv(k, kernel[1]), tirx.floormod(k, kernel[1]))
            places = [
                (at * strides[a] - pads[a] + steps[a] * dilations[a]).astype(x.dtype)
                + offset[n, (group * taps + k) * 2 + a, i, j]
                for a, at in enumerate((i, j))
            ]
            lows = [te.floor(place) for place in places]
            value: Any = tirx.const(0, x.dtype)
            for dy in (0, 1):
                for dx in (0, 1):
                    weight: Any = tirx.const(1, x.dtype)
                    inside, indices = [], []
                    for place, low, more, bound in zip(places, lows, (dy, dx), bounds, strict=True):
                        part = place - low
                        weight = weight * (part if more else 1 - part)
                        at = low + tirx.const(more, x.dtype)
                        # As floats first: an offset may be past any integer.
                        inside += [at >= 0, at <= bound - 1]
                        indices.append(tirx.Cast("int32", at))
                    pixel = tirx.if_then_else(
                        tirx.all(*inside), x[n, c, indices[0], indices[1]], tirx.const(0, x.dtype)
                    )
                    value = value + weight * pixel
            if masks:
                value = value * masks[0][n, group * taps + k, i, j]
            return value

        return te.compute((batch, channels, taps, *out), element, name="deformed")

    wide = [node.wide(node.inputs[i]) for i in (0, 2, 4) if node.has(i)]
    samples = node.emit_te(sampled, *wide, primfunc_name_hint="deformed_samples")
    depth = channels // groups * taps
    right = node.emit(op.reshape(samples, [batch, groups, depth, out[0] * out[1]]))
    left = node.emit(op.reshape(node.wide(node.inputs[1]), [1, groups, weight[0] // groups, depth]))
    result = node.emit(op.reshape(node.emit(op.matmul(left, right)), [batch, weight[0], *out]))
    if node.has(3):
        result = op.add(result, op.reshape(node.wide(node.inputs[3]), [1, -1, 1, 1]))
    return node.cast(result, dtype)
