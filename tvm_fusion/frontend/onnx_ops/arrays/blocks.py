"""Convert DepthToSpace and SpaceToDepth in both modes, and Col2Im: blocks that overlap."""

from functools import reduce
from typing import Any

from tvm import relax, te, tirx

from ...registry import Unsupported
from ..node import Node
from ..registry import other_than, register

op = relax.op


_IN_BOTH_ORDERS = other_than(mode=("DCR", "CRD"))


@register("DepthToSpace", refuses=_IN_BOTH_ORDERS)
def depth_to_space(node: Node) -> Any:
    """Convert DepthToSpace for any extents; mode DCR or CRD."""
    n, c, h, w = node.shape()
    block = node.attribute("blocksize")
    if node.attribute("mode", "DCR") == "DCR":
        x = op.reshape(node.inputs[0], (n, block, block, c // block**2, h, w))
        x = op.permute_dims(x, [0, 3, 4, 1, 5, 2])
    else:
        x = op.reshape(node.inputs[0], (n, c // block**2, block, block, h, w))
        x = op.permute_dims(x, [0, 1, 4, 2, 5, 3])
    return op.reshape(x, (n, c // block**2, h * block, w * block))


@register("SpaceToDepth", refuses=_IN_BOTH_ORDERS)
def space_to_depth(node: Node) -> Any:
    """Convert SpaceToDepth; TVM does not know the mode."""
    n, c, h, w = node.shape()
    block = node.attribute("blocksize")
    x = op.reshape(node.inputs[0], (n, c, h // block, block, w // block, block))
    order = [0, 3, 5, 1, 2, 4] if node.attribute("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    x = op.permute_dims(x, order)
    return op.reshape(x, (n, c * block * block, h // block, w // block))


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
