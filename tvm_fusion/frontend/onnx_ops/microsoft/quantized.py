"""Operators of ONNX Runtime's domain over weights that its quantizers store as integers.

Semantics: ``docs/ContribOperators.md`` of ONNX Runtime.
"""

from typing import Any

import numpy as np
from tvm import relax

from ....core.decisions import Decision, record
from ...operators.packed_weights import (
    Packing,
    RelaxOperators,
    dequantize,
    joined_planes,
    planes_of,
    split_planes,
    unpack_array,
    unpacked,
)
from ...operators.rounded_rows import rounded_rows, widened_rows
from ..math.casts import decoded
from ..node import Node
from ..registry import Unsupported, register

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
        *around, length = list(taken.ty.shape)
        found = unpacked(taken, bits, [*around, length * (8 // bits)], RelaxOperators(node.emit))
        if count is not None and list(found.ty.shape)[place] != count:
            found = node.emit(op.strided_slice(found, [place], [0], [count]))
        return node.emit(node.cast(found, dtype))

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


@register("com.microsoft::MatMulNBits")
def packed_matmul(node: Node) -> Any:
    """Convert the product with weights of few bits whose blocks of terms share a scale.

    The weights' formula is that of :mod:`tvm_fusion.frontend.operators.packed_weights`.
    """
    if node.attribute("weight_prepacked", 0):
        raise Unsupported("with weights packed for one GPU", "export without weight_prepacked")
    bits, size = node.attribute("bits", 4), node.attribute("block_size")
    terms, columns = node.attribute("K"), node.attribute("N")
    packing = Packing(columns, terms, size, planes_of(bits), 1 << (bits - 1))
    x, ops = node.inputs[0], RelaxOperators(node.emit)
    # Level 4 asks for activations of int8; at others they stay as they are, which is more precise.
    if node.attribute("accuracy_level", 0) == _INT8 and terms % size == 0:
        x = widened_rows(node.emit, *rounded_rows(node.emit, x, size), x)
    arrays = {"scales": ops.reshape(node.inputs[2], [columns, packing.blocks])}
    if node.has(3):
        arrays["zeros"] = _zero_points(node, packing, bits)
    groups = _groups(node, packing)
    order = None if groups is None else _order(groups, packing)
    if order is None:
        arrays |= _planes(node, packing, bits)
    else:  # blocks of terms that lie apart: they are put together, in the activations as well
        arrays |= _planes(node, packing, bits, order)
        x = node.emit(op.take(x, relax.const(order), axis=len(node.shape()) - 1))
    if node.has(4) and order is None and not _is_in_order(groups, packing):
        arrays, packing = _by_term(node, arrays, packing, bits)
    weights = dequantize(packing, arrays, node.dtype(), ops)
    result = op.matmul(x, node.emit(op.permute_dims(weights)))
    return op.add(node.emit(result), node.inputs[5]) if node.has(5) else result


_INT8 = 4  # an accuracy level


def _planes(
    node: Node, packing: Packing, bits: int, order: np.ndarray | None = None
) -> dict[str, Any]:
    """Return the numbers in planes; a stream of other widths is parted, which takes its values."""
    rows, blocks, size = packing.rows, packing.blocks, packing.size
    if order is None and len(packing.planes) == 1:
        shape = [rows, blocks, size * bits // 8]
        return {"plane0": RelaxOperators(node.emit).reshape(node.inputs[1], shape)}
    data = node.constant(1)
    if data is None:
        raise Unsupported(f"of {bits} bits that are computed", "make the weights constants")
    numbers = unpack_array(data.reshape(rows, blocks, -1), bits, size)
    if order is not None:
        numbers = numbers.reshape(rows, -1)[:, order].reshape(rows, blocks, size)
    return {name: relax.const(a) for name, a in split_planes(numbers, packing.planes).items()}


def _zero_points(node: Node, packing: Packing, bits: int) -> Any:
    """Return zero points ``[rows, blocks]``: floats, or unpacked bytes."""
    ops, rows, blocks = RelaxOperators(node.emit), packing.rows, packing.blocks
    zeros = node.inputs[3]
    if node.dtype(3) != "uint8":
        return ops.reshape(zeros, [rows, blocks])
    held = -(-blocks * bits // 8)
    if len(packing.planes) > 1:
        data = node.constant(3)
        if data is None:
            raise Unsupported("with zero points that are computed", "make them constants")
        return relax.const(unpack_array(data.reshape(rows, held), bits, blocks))
    per_byte = 8 // bits
    zeros = ops.reshape(zeros, [rows, held])
    zeros = unpacked(zeros, bits, [rows, held * per_byte], ops)
    return zeros if held * per_byte == blocks else ops.first_columns(zeros, blocks)


def _groups(node: Node, packing: Packing) -> np.ndarray | None:
    """Return the block of each term where the model has them as a constant."""
    if not node.has(4):
        return None
    found = node.constant(4)
    return None if found is None else found.reshape(-1)[: packing.columns]


def _is_in_order(groups: np.ndarray | None, packing: Packing) -> bool:
    expected = np.arange(packing.columns) // packing.size
    return groups is not None and np.array_equal(groups, expected)


def _order(groups: np.ndarray, packing: Packing) -> np.ndarray | None:
    """Return the order in which terms of a block lie together, if all blocks are whole."""
    counts = np.bincount(groups, minlength=packing.blocks)
    is_whole = packing.columns % packing.size == 0 and len(counts) == packing.blocks
    if _is_in_order(groups, packing) or not is_whole or (counts != packing.size).any():
        return None
    return np.argsort(groups, kind="stable").astype("int32")


def _by_term(
    node: Node, arrays: dict[str, Any], packing: Packing, bits: int
) -> tuple[dict[str, Any], Packing]:
    """Unpack the numbers, and give each term the scale and zero point of its block."""
    ops, terms, rows = RelaxOperators(node.emit), packing.columns, packing.rows
    numbers = joined_planes(packing, arrays, ops)
    width = packing.blocks * packing.size
    numbers = ops.reshape(numbers, [rows, width])
    numbers = numbers if width == terms else ops.first_columns(numbers, terms)
    found = {"plane0": ops.reshape(numbers, [rows, terms, 1])}
    for name in ("scales", "zeros"):
        if name in arrays:
            found[name] = node.emit(op.take(arrays[name], node.inputs[4], axis=1))
    return found, Packing(rows, terms, 1, (8,), packing.zero)
