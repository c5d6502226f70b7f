"""Convert matrix multiplications and convolutions."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from ..registry import Unsupported
from ..spatial import (
    CONV,
    CONV_TRANSPOSE,
    DATA_LAYOUT,
    KERNEL_LAYOUT,
    TRANSPOSED_KERNEL_LAYOUT,
    per_axis,
)
from ..tensor_types import accumulation_dtype, dtype_of, is_float
from .call import Call
from .registry import register

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
