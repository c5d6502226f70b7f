"""Operands of quantized products: 8-bit integers minus a zero point, integer constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir import GenericConst

from ...core.constants.weight_names import derived
from ...core.decisions import Decision, record
from ...core.names.source import names_of, sources_of
from ...frontend.normalize.engine import Scope, op_name
from ...frontend.tensor_types import dtype_of

BYTES = ("int8", "uint8")
MOST_TERMS = (1 << 31) // (255 * 255)  # of which no int32 overflows
WIDE_WEIGHTS = "wide_weights", "The weights minus their zero point do not fit into 8 bits."
WIDE_COLUMNS = "wide_weights", "A column of the weights spans more than 8 bits."


@dataclass(frozen=True)
class ByteTensor:
    """``data - zero``: bytes, and an int32 for all of them or for each row; None: nothing."""

    data: ir.Expr
    zero: ir.Expr | None


@dataclass(frozen=True)
class IntegerWeights:
    """What a constant matrix holds, and the constant that it comes from."""

    values: np.ndarray
    source: GenericConst

    def bytes(self) -> GenericConst | None:
        """Store the values as bytes, signed ones if they fit; None where they fit no bytes."""
        low, high = (self.values.min(), self.values.max()) if self.values.size else (0, 0)
        for dtype in BYTES:
            limits = np.iinfo(dtype)
            if limits.min <= low and high <= limits.max:
                own = self.source.value.numpy()
                if dtype_of(self.source) in BYTES and np.array_equal(own, self.values):
                    return self.source
                return derived(relax.const(self.values.astype(dtype)), "astype", [self.source])
        return None

    def shifted(self) -> tuple[IntegerWeights, np.ndarray] | None:
        """Subtract a number from each column, so that all are signed bytes.

        Returns
        -------
        (IntegerWeights, numpy.ndarray) or None
            What is left, and the row of numbers. None where a column spans more than 8 bits.
        """
        low, high = (f(axis=-2, keepdims=True) for f in (self.values.min, self.values.max))
        row = (low + high + 1) // 2
        left = self.values - row
        limits = np.iinfo("int8")
        if left.min() < limits.min or left.max() > limits.max:
            return None
        return IntegerWeights(left, self.source), row.astype("int32")


def byte_tensor(operand: ir.Expr, scope: Scope) -> ByteTensor | None:
    """Match 8-bit data behind a cast to int32 and a zero point constant along K."""
    zero = None
    value = scope.value(operand)
    difference = scope.call(operand, "relax.subtract")
    if difference is not None:
        value, zero = scope.value(difference.args[0]), difference.args[1]
        shape = zero.ty.shape
        if shape is None or (len(shape) and not is_one(shape[-1])):
            return None
    if op_name(value) == "relax.astype" and dtype_of(value) == "int32":
        data = value.args[0]
    elif zero is None:
        data = operand
    else:
        return None
    is_same = tvm_ffi.structural_equal(data.ty.shape, operand.ty.shape)
    return ByteTensor(data, zero) if dtype_of(data) in BYTES and is_same else None


def integer_weights(operand: ir.Expr, scope: Scope) -> IntegerWeights | None:
    """Compute a constant of integers; None for anything else."""
    value = scope.value(operand)
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        return IntegerWeights(array.astype("int64"), value) if array.dtype.kind in "iu" else None
    if op_name(value) == "relax.astype" and dtype_of(value) == "int32":
        return integer_weights(value.args[0], scope)
    if op_name(value) == "relax.subtract":
        a, b = (integer_weights(arg, scope) for arg in value.args)
        if a is not None and b is not None and a.values.ndim >= b.values.ndim:
            return IntegerWeights(a.values - b.values, a.source)
    return None


@dataclass(frozen=True)
class Dequantized:
    """``scale (data - zero)`` times ``scales weights``: the operands of a dequantized product."""

    data: ir.Expr
    scale: ir.Expr
    zero: ir.Expr
    scales: GenericConst
    weights: IntegerWeights


def dequantized(
    call: relax.Call, axis: int, reduced: Sequence[int], scope: Scope
) -> Dequantized | None:
    """Match an activation of one scale and constant weights of one for each result at most.

    Parameters
    ----------
    call
        A product or a convolution of both.
    axis
        The axis of the weights along which results are.
    reduced
        Those along which terms of a result are.
    """
    moved = scope.call(call.args[1], "relax.permute_dims")
    data = scope.call(call.args[0], "relax.dequantize")
    matrix = scope.call(call.args[1] if moved is None else moved.args[0], "relax.dequantize")
    if data is None or matrix is None:
        return None
    x, scale, zero = data.args
    w, scales, zeros = matrix.args
    along = int(matrix.attrs.axis) % w.ty.ndim
    if moved is not None and isinstance(w, GenericConst):  # Gemm's transB
        w, along = _moved(w, along, moved.attrs.axes)
    refusal = None
    if not all(isinstance(a, GenericConst) for a in (w, scales, zeros)):
        refusal = "not_constant", "The weights are computed at run time."
    elif dtype_of(x) not in BYTES or dtype_of(w) not in BYTES:
        return None
    elif not is_single(scale) or not is_single(zero):
        refusal = "several_scales", "The activation has several scales or zero points."
    elif along != axis and not all(map(is_single, (scales, zeros))):
        refusal = "several_scales", "The scales of the weights vary along the reduced axes."
    elif prod(w.value.shape[k] for k in reduced) > MOST_TERMS:
        refusal = "many_terms", "Sums of so many products of bytes may overflow int32."
    if refusal is not None:
        decide(call, scope, "refused", *refusal)
        return None
    shape = [-1 if k == axis else 1 for k in range(w.ty.ndim)]
    spread = zeros.value.numpy().astype("int64").reshape(shape)
    weights = IntegerWeights(w.value.numpy().astype("int64") - spread, w)
    return Dequantized(x, scale, zero, scales, weights)


def _moved(weights: GenericConst, axis: int, axes: Any) -> tuple[GenericConst, int]:
    """Move the axes of constant weights; give the new place of one of them as well."""
    rank = weights.ty.ndim
    order = [*reversed(range(rank))] if axes is None else [int(a) % rank for a in axes]
    array = np.ascontiguousarray(weights.value.numpy().transpose(order))
    return derived(relax.const(array), "permute_dims", [weights]), order.index(axis)


def decide(call: relax.Call, scope: Scope, verdict: Any, code: str, sentence: str) -> None:
    """Record a decision about a product or a convolution."""
    names = names_of(sources_of(scope.target))
    record(Decision(op_name(call) or "", "", verdict, code, sentence, producer_names=names))


def scalar(expr: ir.Expr, dtype: str, scope: Scope) -> ir.Expr:
    """Bring a tensor of one element to no dimensions and a type."""
    if isinstance(expr, GenericConst):
        return relax.const(expr.value.numpy().reshape(()).astype(dtype))
    if expr.ty.ndim:
        expr = scope.emit(relax.op.reshape(expr, []))
    return expr if dtype_of(expr) == dtype else scope.emit(relax.op.astype(expr, dtype))


def scaled(
    total: ir.Expr, scale: ir.Expr, scales: GenericConst, shape: Sequence[int], scope: Scope
) -> ir.Expr:
    """Multiply integer sums by the scales of both operands, those of the weights in a shape."""
    factor, factors = scalar(scale, "float32", scope), scales.value.numpy().reshape(shape)
    both: Any = relax.op.multiply(factor, derived(relax.const(factors), "reshape", [scales]))
    if isinstance(factor, GenericConst):
        both = derived(relax.const(factor.value.numpy() * factors), "multiply", [scales])
    return relax.op.multiply(scope.emit(relax.op.astype(total, "float32")), both)


def is_single(expr: ir.Expr) -> bool:
    """Whether a tensor has one element."""
    return expr.ty.shape is not None and all(is_one(d) for d in expr.ty.shape)


def is_one(extent: Any) -> bool:
    """Whether an extent is known to be 1."""
    return isinstance(extent, tvm.tirx.IntImm) and int(extent) == 1
