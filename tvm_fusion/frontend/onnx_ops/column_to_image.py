"""Convert Col2Im: sum overlapping blocks into an image, each pixel from what covers it."""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import te, tirx

from ..registry import Unsupported
from .node import Node
from .registry import register


@register("Col2Im")
def column_to_image(node: Node) -> Any:
    """Convert Col2Im over any number of axes.

    ::

        y[n, c, o..] = sum over k.. with o + pad - k * dilation = l * stride, 0 <= l < blocks:
                           x[n, c * |k| + k.., l..]
    """
    image = [int(n) for n in node.required_constant(1, "image_shape").reshape(-1)]
    block = [int(n) for n in node.required_constant(2, "block_shape").reshape(-1)]
    rank = len(image)
    strides = list(node.attribute("strides") or [1] * rank)
    dilations = list(node.attribute("dilations") or [1] * rank)
    pads = list(node.attribute("pads") or [0] * 2 * rank)
    batch, columns, places = node.static_shape()
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    elements = reduce(lambda a, b: a * b, block)
    if reduce(lambda a, b: a * b, counts) != places or columns % elements:
        raise Unsupported(
            f"of {columns} rows and {places} columns to image {image} in blocks of {block}",
            "correct the shapes",
        )
    dtype = node.dtype()
    x = node.wide(node.inputs[0])

    def image_of(data: te.Tensor) -> te.Tensor:
        taps = [te.reduce_axis((0, extent), f"k{i}") for i, extent in enumerate(block)]

        def element(n: Any, c: Any, *at: Any) -> Any:
            row: Any = c
            column: Any = 0
            inside = []
            for i in range(rank):
                place = at[i] + pads[i] - taps[i] * dilations[i]
                row = row * block[i] + taps[i]
                number = tirx.floordiv(place, strides[i])
                column = column * counts[i] + number
                inside += [place >= 0, number < counts[i]]
                if strides[i] > 1:
                    inside.append(tirx.floormod(place, strides[i]) == 0)
            value = tirx.if_then_else(
                tirx.all(*inside), data[n, row, column], tirx.const(0, data.dtype)
            )
            return te.sum(value, axis=taps)

        return te.compute((batch, columns // elements, *image), element, name="col2im")

    return node.cast(node.emit_te(image_of, x, primfunc_name_hint="col2im"), dtype)
