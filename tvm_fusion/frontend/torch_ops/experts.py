"""Convert products of groups of rows with a matrix each, as mixtures of experts have them."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...core.tir.ragged import grouped_matmul
from ..registry import Unsupported
from ..tensor_types import accumulation_dtype, dtype_of, is_float
from .call import Call
from .ranks import histogram_by_loops
from .registry import register

op = relax.op


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
    """Multiply once, a sum over groups of which each row has one (:mod:`...core.tir.ragged`).

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
