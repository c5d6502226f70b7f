"""Operators of ONNX Runtime's domain over weights that its quantizers store as integers.

Semantics: ``docs/ContribOperators.md`` of ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ...core.decisions import Decision, record
from .casts import decoded
from .node import Node
from .registry import Unsupported, register

op = relax.op


@register("com.microsoft::DynamicQuantizeLSTM")
def dynamic_lstm(node: Node) -> Any:
    """Convert an LSTM of quantized weights, which are scaled back; its state stays in float32.

    ONNX Runtime rounds inputs and states to bytes in every step, so that its own results are off
    by about a hundredth of what they would be without.
    """
    weights = [_weights(node, 1, 8), _weights(node, 2, 10)]
    names = (
        *("activation_alpha", "activation_beta", "activations", "clip", "direction"),
        *("hidden_size", "input_forget"),
    )
    given = {name: value for name in names if (value := node.attribute(name)) is not None}
    label = node.proto.name or node.proto.output[0]
    sentence = (
        "The weights of DynamicQuantizeLSTM are scaled back to float32: inputs and states are not "
        "rounded to bytes, which is closer to the LSTM that was quantized."
    )
    record(Decision("com.microsoft::DynamicQuantizeLSTM", label, "accepted", "lstm_wide", sentence))
    return node.apply_all("LSTM", 3, node.inputs[0], *weights, *node.inputs[3:8], **given)


def _weights(node: Node, place: int, scale: int) -> Any:
    """Scale weights back: [directions, terms, rows] becomes [directions, rows, terms]."""
    parts = []
    for i in (scale, scale + 1):
        value = node.emit(node.cast(node.inputs[i], "float32"))
        shape = node.shape(i)
        parts.append(node.emit(op.reshape(value, [shape[0], 1, shape[1] if len(shape) > 1 else 1])))
    numbers = node.emit(node.cast(node.inputs[place], "float32"))
    centered = node.emit(op.subtract(numbers, parts[1]))
    scaled = node.emit(op.multiply(centered, parts[0]))
    return node.emit(op.permute_dims(scaled, [0, 2, 1]))


@register("com.microsoft::GatherBlockQuantized")
def gather_blocks(node: Node) -> Any:
    """Convert the choice of rows of a quantized table: rows are taken first, then scaled back."""
    rank, narrow = len(node.shape()), node.narrow_dtype(0)
    axis = node.attribute("gather_axis", 0) % rank
    along = node.attribute("quantize_axis", 1) % rank
    size, bits = node.attribute("block_size", 128), node.attribute("bits", 4)
    if axis == along:
        raise Unsupported("that gathers along the axis of its blocks", "use another gather_axis")
    if narrow.startswith("float") or node.dtype(0) not in ("uint8", "int8"):
        raise Unsupported(f"of {narrow or node.dtype(0)}", "quantize to integers of 4 or 8 bits")
    if not narrow and (bits not in (2, 4, 8) or along != rank - 1):
        raise Unsupported(f"of {bits} bits along axis {along}", "pack 2, 4 or 8 bits, last axis")
    indices = node.inputs[1]
    more = len(node.shape(1)) - 1  # the axes that indices bring
    place = along + (more if along > axis else 0)
    dtype = node.dtype(2)

    def rows(index: int) -> Any:
        return node.emit(node.apply("Gather", node.inputs[index], indices, axis=axis))

    def numbers(index: int, count: Any) -> Any:
        """Take rows and unpack their numbers, of which the last byte may hold too many."""
        taken = rows(index)
        if narrow:
            return node.emit(node.cast(decoded(node, taken, narrow), dtype))
        unpacked = node.emit(_unpacked(node, taken, bits))
        if count is not None and list(unpacked.ty.shape)[place] != count:
            unpacked = node.emit(op.strided_slice(unpacked, [place], [0], [count]))
        return node.emit(node.cast(unpacked, dtype))

    scales, values = rows(2), numbers(0, None)
    extent = int(list(values.ty.shape)[place])

    def spread(blocks: Any) -> Any:
        wide = node.emit(op.repeat(blocks, size, place))
        if int(list(wide.ty.shape)[place]) == extent:
            return wide
        return node.emit(op.strided_slice(wide, [place], [0], [extent]))

    if node.has(3):
        zeros = spread(numbers(3, int(list(scales.ty.shape)[place])))
        values = node.emit(op.subtract(values, zeros))
    elif not narrow:
        values = node.emit(op.subtract(values, relax.const(float(1 << (bits - 1)), dtype)))
    return op.multiply(values, spread(scales))


def _unpacked(node: Node, packed: Any, bits: int) -> Any:
    """Unpack the numbers of bytes along the last axis, the lowest bits first."""
    if bits == 8:
        return packed
    mask = relax.const(np.uint8((1 << bits) - 1), "uint8")
    *around, count = list(packed.ty.shape)
    parts = []
    for shift in range(0, 8, bits):
        moved = op.right_shift(packed, relax.const(np.uint8(shift), "uint8")) if shift else packed
        part = node.emit(op.bitwise_and(moved, mask))
        parts.append(node.emit(op.expand_dims(part, len(around) + 1)))
    joined = node.emit(op.concat(parts, len(around) + 1))
    return op.reshape(joined, [*around, count * (8 // bits)])
