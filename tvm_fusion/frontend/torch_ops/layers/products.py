"""Convert matrix products: of packed weights and of experts, too."""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from tvm import relax

from ....core.tir.ragged import grouped_matmul
from ...operators.packed_weights import Packing, RelaxOperators, dequantize, unpacked
from ...operators.spatial import (
    CONV,
    CONV_TRANSPOSE,
    DATA_LAYOUT,
    KERNEL_LAYOUT,
    TRANSPOSED_KERNEL_LAYOUT,
    per_axis,
)
from ...registry import Unsupported
from ...tensor_types import accumulation_dtype, dtype_of, is_float
from ..call import Call, static
from ..math.ranks import histogram_by_loops
from ..registry import register

op = relax.op


@register("mm", "bmm", "matmul", "mv", "dot")
def matmul(call: Call) -> Any:
    """Multiply matrices."""
    first, second = [a.name for a in call.node.target._schema.arguments][:2]
    return product(call, call.tensor(first), call.tensor(second), call.dtype)


@register("einsum")
def einsum(call: Call) -> Any:
    """Convert torch.einsum."""
    return op.einsum(call["tensors"], call["equation"])


def product(call: Call, x: Any, y: Any, dtype: str) -> Any:
    """Multiply matrices of one dtype; ``dtype`` of the result."""
    if dtype_of(x) == "bool":
        raise Unsupported("of truth values", "cast to an integer type")
    is_told = dtype == "float32" or dtype != dtype_of(x)
    return call.emit(op.matmul(x, y, dtype if is_float(dtype) and is_told else None))


@register("addmm", "baddbmm", "addmv")
def add_product(call: Call) -> Any:
    """Add a product of matrices to a tensor, each with its factor."""
    first, second = [a.name for a in call.node.target._schema.arguments][1:3]
    alpha, beta, dtype, wide = (
        call["alpha"],
        call["beta"],
        call.dtype,
        accumulation_dtype(call.dtype),
    )
    if not is_float(dtype):
        alpha, beta = int(alpha), int(beta)
    result = product(call, call.tensor(first, dtype), call.tensor(second, dtype), wide)
    if alpha != 1:
        result = call.emit(op.multiply(result, relax.const(alpha, wide)))
    bias = call.tensor("self", wide)
    if beta == 0:
        return call.cast(result, dtype)
    if beta != 1:
        bias = call.emit(op.multiply(bias, relax.const(beta, wide)))
    is_first = call.node.target.__name__.startswith("addmm")
    total = call.emit(op.add(bias, result) if is_first else op.add(result, bias))
    return call.cast(total, dtype)


@register("addbmm")
def add_sum_of_products(call: Call) -> Any:
    """Add the sum of a batch of products to a tensor."""
    alpha, beta, dtype, wide = (
        call["alpha"],
        call["beta"],
        call.dtype,
        accumulation_dtype(call.dtype),
    )
    each = product(call, call.tensor("batch1", dtype), call.tensor("batch2", dtype), wide)
    result = call.emit(op.sum(each, [0]))
    result = call.emit(op.multiply(result, call.as_tensor(alpha, wide)))
    if beta == 0:
        call.raw("self")
        return call.cast(result, dtype)
    scaled = op.multiply(call.tensor("self", wide), call.as_tensor(beta, wide))
    return call.cast(call.emit(op.add(scaled, result)), dtype)


@register("linear")
def linear(call: Call) -> Any:
    """Multiply by a transposed matrix and add a bias."""
    weight = call.emit(op.permute_dims(call.tensor("weight")))
    x, bias, dtype = call.tensor("input"), call["bias"], call.dtype
    if bias is None:
        return product(call, x, weight, dtype)
    wide = accumulation_dtype(dtype)
    total = call.emit(op.add(product(call, x, weight, wide), call.cast(bias, wide)))
    return call.cast(total, dtype)


@register("convolution")
def convolution(call: Call) -> Any:
    """Convert convolutions of one to three axes, transposed ones too."""
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call["bias"]
    rank = len(call.out.shape) - 2
    transposed, groups = call["transposed"], call["groups"]
    options = {n: per_axis(call[n], rank) for n in ("stride", "padding", "dilation")}
    output_padding = per_axis(call["output_padding"], rank)
    if not 1 <= rank <= 3:
        raise Unsupported(f"over {rank} axes", "convolve one to three axes")
    if any(e == 0 for e in (*call.meta("input").shape, *call.meta("weight").shape)):
        raise Unsupported("of empty tensors", "leave it out")
    if transposed and (math.prod(options["dilation"]) != 1 or rank == 3 or groups != 1):
        result = _transposed(call, x, weight, rank, groups, options, output_padding)
    else:
        common = {
            "strides": options["stride"],
            "padding": options["padding"],
            "dilation": options["dilation"],
            "groups": groups,
            "data_layout": DATA_LAYOUT[rank],
            "out_dtype": accumulation_dtype(call.dtype) if bias is not None else call.dtype,
        }
        if transposed:
            common |= {"kernel_layout": TRANSPOSED_KERNEL_LAYOUT[rank]}
            result = CONV_TRANSPOSE[rank](x, weight, output_padding=output_padding, **common)
        else:
            result = CONV[rank](x, weight, kernel_layout=KERNEL_LAYOUT[rank], **common)
    result = call.emit(result)
    if bias is None:
        return result
    wide = dtype_of(result)
    bias = call.emit(op.reshape(call.cast(bias, wide), [1, -1, *[1] * rank]))
    return call.cast(call.emit(op.add(result, bias)), call.dtype)


def _transposed(
    call: Call,
    x: Any,
    weight: Any,
    rank: int,
    groups: int,
    options: dict[str, list[int]],
    output_padding: list[int],
) -> Any:
    """Write a transposed convolution as a convolution of the argument spread out by its strides."""
    shape = [*call.meta("input").shape]
    kernel = [*call.meta("weight").shape]
    if not all(isinstance(e, int) for e in (*shape[1:], *kernel)):
        raise Unsupported("over symbolic axes", "give the axes fixed extents")
    for axis, stride in enumerate(options["stride"], 2):
        if stride == 1:
            continue
        spread = call.emit(op.expand_dims(x, axis + 1))
        width = [0, 0] * (axis + 1) + [0, stride - 1] + [0, 0] * (len(shape) - axis - 1)
        spread = call.emit(op.nn.pad(spread, width))
        extents = [call.extent(e) for e in shape[:axis]]
        shape[axis] *= stride
        x = call.emit(op.reshape(spread, [*extents, *shape[axis:]]))
        shape[axis] -= stride - 1
        x = call.emit(op.strided_slice(x, [axis], [0], [shape[axis]]))
    width = [0, 0, 0, 0]
    for axis in range(rank):
        reach = options["dilation"][axis] * (kernel[2 + axis] - 1) - options["padding"][axis]
        width += [reach, reach + output_padding[axis]]
    if min(width) < 0:
        begin = [max(0, -w) for w in width[4::2]]
        end = [shape[2 + a] - max(0, -width[5 + 2 * a]) for a in range(rank)]
        x = call.emit(op.strided_slice(x, list(range(2, 2 + rank)), begin, end))
    x = call.emit(op.nn.pad(x, [max(0, w) for w in width]))
    for axis in range(rank):
        weight = call.emit(op.flip(weight, 2 + axis))
    inner, outer = kernel[0] // groups, kernel[1]
    weight = call.emit(op.reshape(weight, [groups, inner, outer, *kernel[2:]]))
    axes = [0, 2, 1, *range(3, 3 + rank)]
    weight = call.emit(op.permute_dims(weight, axes))
    weight = call.emit(op.reshape(weight, [groups * outer, inner, *kernel[2:]]))
    return CONV[rank](
        x,
        weight,
        dilation=options["dilation"],
        groups=groups,
        data_layout=DATA_LAYOUT[rank],
        kernel_layout=KERNEL_LAYOUT[rank],
    )


# Convert products with integers, and with weights that PyTorch packs.
#
# Weights of 4 bits are packed for the processor: which rows' numbers share bytes is asked of the
# PyTorch that is here, as if it had packed them.


_BLOCK = 64  # rows that are packed together


@register("_int_mm")
def int_mm(call: Call) -> Any:
    """Multiply matrices of int8, accumulated in int32."""
    return op.matmul(call.tensor("self"), call.tensor("mat2"), "int32")


@register("_weight_int8pack_mm")
def int8pack_mm(call: Call) -> Any:
    """Multiply by rows of int8 with a scale each."""
    weight = call.cast(call.tensor("mat2"), call.dtype)
    result = product(call, call.tensor("self"), call.emit(op.permute_dims(weight)), call.dtype)
    return op.multiply(result, call.tensor("scales", call.dtype))


@register("_weight_int4pack_mm_for_cpu")
def int4pack_mm(call: Call) -> Any:
    """Multiply by rows of 4 bits, ``(q - 8) * scale + zero`` in groups of columns."""
    rows, columns = static(call.meta("mat2").shape)
    columns, group = 2 * columns, call["qGroupSize"]
    ops = RelaxOperators(call.emit)
    numbers = _rows(call, rows, columns, ops)
    both = call.emit(op.permute_dims(call.tensor("qScaleAndZeros", call.dtype), [2, 1, 0]))
    scales, zeros = (
        ops.reshape(call.emit(op.strided_slice(both, [0], [i], [i + 1])), [rows, columns // group])
        for i in range(2)
    )
    arrays = {
        "plane0": ops.reshape(numbers, [rows, columns // group, group]),
        "scales": scales,
        "minimums": call.emit(op.negative(zeros)),
    }
    weight = dequantize(Packing(rows, columns, group, (8,), 8), arrays, call.dtype, ops)
    return product(call, call.tensor("self"), call.emit(op.permute_dims(weight)), call.dtype)


def _rows(call: Call, rows: int, columns: int, ops: RelaxOperators) -> Any:
    """Unpack the numbers of all rows, of whole blocks and of one that is shorter."""
    whole = rows - rows % _BLOCK
    parts = []
    for first, end, block in ((0, whole, _BLOCK), (whole, rows, rows - whole)):
        if first == end:
            continue
        packed = call.tensor("mat2")
        if end - first < rows:
            packed = call.emit(op.strided_slice(packed, [0], [first], [end]))
        packed = ops.reshape(packed, [(end - first) // block, columns, block // 2])
        numbers = unpacked(packed, 4, [(end - first) // block, columns, block], ops)
        order = np.array(places(block), "int32")
        numbers = call.emit(op.take(numbers, relax.const(order), 2))
        numbers = call.emit(op.permute_dims(numbers, [0, 2, 1]))
        parts.append(ops.reshape(numbers, [end - first, columns]))
    return parts[0] if len(parts) == 1 else call.emit(op.concat(parts, 0))


@cache
def places(block: int) -> tuple[int, ...]:
    """Find where each row of a block lies among the numbers of a column."""
    try:
        digits = [torch.arange(block, dtype=torch.int32) // 16**i % 16 for i in range(2)]
        columns = [d.reshape(block, 1).expand(block, 32).contiguous() for d in digits]
        packed = [torch.ops.aten._convert_weight_to_int4pack_for_cpu(c, 1) for c in columns]
    except (RuntimeError, NotImplementedError) as error:
        advice = "keep the weights as integers, and scale them in the program"
        raise Unsupported("that this PyTorch cannot pack", advice) from error
    low, high = (p.reshape(32, block // 2)[0].numpy() for p in packed)
    found = [(low >> s & 15) + 16 * (high >> s & 15) for s in (0, 4)]
    return tuple(int(i) for i in np.argsort(np.stack(found, -1).reshape(-1)))


@register("transformers::grouped_mm_fallback")
def grouped_mm_fallback(call: Call) -> Any:
    """Multiply groups of rows by a matrix each; ``offs`` are the groups' ends."""
    return _grouped(call, call.tensor("input"), call.tensor("weight"), call.meta("input"))


@register("_grouped_mm")
def grouped_mm(call: Call) -> Any:
    """Multiply groups of rows by a matrix each."""
    rows, matrices = call.meta("self"), call.meta("mat2")
    if rows.ndim != 2 or matrices.ndim != 3 or call["offs"] is None or call["bias"] is not None:
        raise Unsupported("of other ranks than 2 and 3", "call torch.matmul or torch.bmm")
    call.raw("out_dtype")
    return _grouped(call, call.tensor("self"), call.tensor("mat2"), rows)


def _grouped(call: Call, rows: Any, matrices: Any, fake: Any) -> Any:
    """Multiply once, a sum over groups of which each row has one (:mod:`....core.tir.ragged`).

    Few rows take their experts' matrices instead, which reads no other expert's weights.
    """
    groups = int(call.meta("weight" if "weight" in call else "mat2").shape[0])
    count = call.extent(fake.shape[0])
    if not isinstance(count, int) or count > groups:
        inputs = rows, matrices, call.tensor("offs"), accumulation_dtype(dtype_of(rows))
        builder = call.importer.block_builder
        result = builder.emit_te(grouped_matmul, *inputs, primfunc_name_hint="grouped_mm")
        return call.cast(result, call.dtype)
    numbers = call.emit(op.arange(0, count, 1, dtype="int64"))
    ends = call.tensor("offs", "int64")
    after = op.greater_equal(op.expand_dims(numbers, 1), op.expand_dims(ends, 0))
    # The matrix of a row is as far as ends at or before it: groups may be empty.
    expert = call.emit(op.sum(op.astype(after, "int64"), axis=1))
    # Rows behind the last end belong to none; they are zeros.
    known = call.emit(op.minimum(expert, relax.const(groups - 1, "int64")))
    taken = call.emit(op.take(matrices, known, axis=0))
    result = call.emit(op.squeeze(op.matmul(op.expand_dims(rows, 1), taken), [1]))
    inside = op.less(op.expand_dims(expert, 1), relax.const(groups, "int64"))
    result = op.where(inside, result, relax.const(0, result.ty.dtype))
    return call.cast(call.emit(result), call.dtype)


@register("histc")
def histogram(call: Call) -> Any:
    """Count elements in bins of equal width between two numbers, the upper one included."""
    bins, low, high = call["bins"], call["min"], call["max"]
    if not is_float(call.dtype) or low >= high:
        return histogram_by_loops(call)

    def number(value: float) -> Any:
        return relax.const(value, call.dtype)

    x = call.emit(op.reshape(call.tensor("self"), [-1]))
    place = op.divide(op.subtract(x, number(low)), number(high - low))
    place = call.emit(op.floor(op.multiply(place, number(bins))))
    inside = op.logical_and(op.greater_equal(x, number(low)), op.less_equal(x, number(high)))
    place = op.where(inside, op.minimum(place, number(bins - 1)), number(-1))
    every = op.astype(op.arange(0, bins, 1, dtype="int64"), call.dtype)
    hits = op.equal(op.expand_dims(call.emit(place), 1), op.expand_dims(call.emit(every), 0))
    return op.sum(op.astype(call.emit(hits), call.dtype), axis=0)
