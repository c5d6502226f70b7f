"""Convert convolutions with automatic padding, and ConvTranspose with an output shape."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..registry import Unsupported
from ..spatial import CONV_TRANSPOSE, DATA_LAYOUT, TRANSPOSED_KERNEL_LAYOUT
from .node import Node
from .padding import framed
from .pooling import same_padding
from .registry import register

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
