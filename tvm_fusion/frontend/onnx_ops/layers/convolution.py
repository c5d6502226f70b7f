"""Convert convolutions: automatic padding, a given output shape, samples between pixels."""

from typing import Any

from tvm import relax, te, tirx

from ...operators.spatial import CONV_TRANSPOSE, DATA_LAYOUT, TRANSPOSED_KERNEL_LAYOUT
from ...registry import Unsupported
from ..arrays.padding import framed
from ..node import Node
from ..registry import register
from .pooling import same_padding

op = relax.op


@register("Conv")
def conv(node: Node) -> Any:
    """Convert Conv of symbolic extents with automatic padding; others are left to TVM."""
    auto_pad = node.attribute("auto_pad", "NOTSET")
    extents = node.shape()[2:]
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER") or all(isinstance(e, int) for e in extents):
        return None
    kernel, spatial = node.static_shape(1)[2:], len(extents)
    strides = list(node.attribute("strides") or [1] * spatial)
    dilations = list(node.attribute("dilations") or [1] * spatial)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pairs = [same_padding(node, *at) for at in zip(extents, strides, spans, strict=True)]
    pads = [before for before, _ in pairs] + [after for _, after in pairs]
    options = {"strides": strides, "dilations": dilations, "group": node.attribute("group", 1)}
    given = list(node.inputs if node.has(2) else node.inputs[:2])
    if not all(isinstance(width, int) for width in pads):
        steps = zip(extents, strides, spans, strict=True)
        covered = [(extent + s - 1) // s * s - s + span for extent, s, span in steps]
        given[0] = framed(node, given[0], pads[:spatial], covered, 0)
        pads = [0] * 2 * spatial
    return node.apply("Conv", *given, pads=pads, kernel_shape=list(kernel), **options)


@register("ConvTranspose")
def conv_transpose(node: Node) -> Any:
    """Convert ConvTranspose with ``output_shape`` or ``auto_pad=SAME_*``; others are left to TVM.

    ``total = stride * (in - 1) + output_padding + (kernel - 1) * dilation + 1 - out`` is cut off,
    the odd one at the end for SAME_UPPER and at the beginning otherwise; where it is negative,
    zeros are added at the end.
    """
    wanted = node.attribute("output_shape")
    auto_pad = node.attribute("auto_pad", "NOTSET")
    if not wanted and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    extents, kernel = node.shape()[2:], node.static_shape(1)[2:]
    spatial, facts = len(extents), node.facts
    if spatial not in CONV_TRANSPOSE:
        raise Unsupported(f"over {spatial} axes", "use 1 to 3 spatial axes")
    strides = node.attribute("strides") or [1] * spatial
    dilations = node.attribute("dilations") or [1] * spatial
    extra = node.attribute("output_padding") or [0] * spatial
    same = [extent * stride for extent, stride in zip(extents, strides, strict=True)]
    out = list(wanted)[-spatial:] if wanted else same
    begin, end, missing = [], [], []
    for i in range(spatial):
        full = strides[i] * (extents[i] - 1) + (kernel[i] - 1) * dilations[i] + 1 + extra[i]
        total = facts.larger(facts.simplify(full - out[i]), 0)
        if not isinstance(total, int):
            raise Unsupported("to one output_shape from symbolic extents", "use pads or auto_pad")
        half = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        begin.append(half)
        end.append(total - half)
        missing.append(facts.larger(facts.simplify(out[i] - full), 0))
    result = CONV_TRANSPOSE[spatial](
        *node.inputs[:2],
        strides=list(strides),
        padding=begin + end,
        output_padding=list(extra),
        dilation=list(dilations),
        groups=node.attribute("group", 1),
        data_layout=DATA_LAYOUT[spatial],
        kernel_layout=TRANSPOSED_KERNEL_LAYOUT[spatial],
    )
    if any(missing):
        widths = [0, 0, 0, 0] + [w for m in missing for w in (0, m)]
        result = op.nn.pad(node.emit(result), widths)
    if node.has(2):
        result = op.add(result, op.reshape(node.inputs[2], [1, -1] + [1] * spatial))
    return result


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
