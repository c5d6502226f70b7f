"""Convert products with integers, and with weights that PyTorch packs.

Weights of 4 bits are packed for the processor: which rows' numbers share bytes is asked of the
PyTorch that is here, as if it had packed them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from tvm import relax

from ..packed_weights import Packing, RelaxOperators, dequantize, unpacked
from ..registry import Unsupported
from .call import Call, static
from .matmul import product
from .registry import register

op = relax.op
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
