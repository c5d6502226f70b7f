"""Products of quantized tensors as products of 8-bit integers, dequantized afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir import GenericConst

from ..core.decisions import Decision, record
from ..core.weight_names import derived
from ..frontend.normalize.engine import Scope, op_name, rewrite
from .changes import Change, note

BYTES = ("int8", "uint8")
MOST_TERMS = (1 << 31) // (255 * 255)  # of which no int32 overflows


@dataclass(frozen=True)
class _Left:
    """``data - zero``: bytes, and an int32 for all of them or for each row; None: nothing."""

    data: ir.Expr
    zero: ir.Expr | None


@dataclass(frozen=True)
class _Weights:
    """What a constant matrix holds, and the constant that it comes from."""

    values: np.ndarray
    source: GenericConst

    def bytes(self) -> GenericConst | None:
        """Store the values as bytes; None where they do not fit."""
        low, high = (self.values.min(), self.values.max()) if self.values.size else (0, 0)
        for dtype in BYTES:
            limits = np.iinfo(dtype)
            if limits.min <= low and high <= limits.max:
                own = self.source.value.numpy()
                if _dtype(self.source) in BYTES and np.array_equal(own, self.values):
                    return self.source
                return derived(relax.const(self.values.astype(dtype)), "astype", [self.source])
        return None


@tvm.transform.module_pass(opt_level=0, name="ByteProducts")
class ByteProducts:
    """``(x - z) W = x W - z (1' W)`` and ``s(x - z) t(W - u) = st ((x - z)(W - u))``.

    Importers write quantised products with operands widened to int32 or dequantised to float32:
    four times the memory, and other instructions. Where the right operand is constant, its zero
    point goes into it if the differences still are bytes; the left one's becomes a row of
    constants, times the sums of the columns. Integers are exact, wrapped around in both forms; the
    float32 product of dequantised operands is rounded once for each result, not for each term.

    Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", section 2.3.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function."""
        return rewrite(mod, _product)


def _product(value: Any, scope: Scope) -> Any:
    if op_name(value) != "relax.matmul" or value.args[1].ty.ndim < 2:
        return None
    dtype = _dtype(value)
    if dtype == "int32":
        return _integers(value, scope)
    return _dequantised(value, scope) if dtype == "float32" else None


def _integers(product: relax.Call, scope: Scope) -> Any:
    left = _left(product.args[0], scope)
    weights = _weights(product.args[1], scope)
    if left is None or weights is None:
        return None
    narrow = weights.bytes()
    if narrow is None:
        _record(
            "refused", "wide_weights", "The weights minus their zero point do not fit into 8 bits."
        )
        return None
    if left.data.same_as(product.args[0]) and narrow.same_as(product.args[1]):
        return None
    _record(
        "accepted",
        "bytes",
        "Both operands are 8-bit integers: they are multiplied as such and accumulated in int32.",
    )
    note(Change("", "", ("byte_products",), "(x - z) W", "x W - z (1' W)"))
    return _without_zero(left, weights, narrow, scope)


def _dequantised(product: relax.Call, scope: Scope) -> Any:
    data, matrix = (scope.call(a, "relax.dequantize") for a in product.args)
    if data is None or matrix is None:
        return None
    x, scale, zero = data.args
    w, scales, zeros = matrix.args
    if not all(isinstance(a, GenericConst) for a in (w, scales, zeros)):
        _record("refused", "not_constant", "The weights are computed at run time.")
        return None
    terms, axis = w.value.shape[-2], int(matrix.attrs.axis) % w.ty.ndim
    per_column = axis == w.ty.ndim - 1
    if _dtype(x) not in BYTES or _dtype(w) not in BYTES or terms > MOST_TERMS:
        return None
    if not _is_single(scale) or not _is_single(zero):
        _record("refused", "several_scales", "The activation has several scales or zero points.")
        return None
    if not per_column and not (_is_single(scales) and _is_single(zeros)):
        _record("refused", "several_scales", "The scales of the weights vary along K.")
        return None
    weights = _Weights(w.value.numpy().astype("int64") - zeros.value.numpy().astype("int64"), w)
    narrow = weights.bytes()
    if narrow is None:
        _record(
            "refused", "wide_weights", "The weights minus their zero point do not fit into 8 bits."
        )
        return None
    _record(
        "accepted",
        "bytes",
        "The quantized operands are multiplied as 8-bit integers, and the result is dequantized.",
    )
    both_scaled = ("s(x - z) t(W - u)", "s t ((x - z) (W - u))")
    note(Change("", "", ("byte_products",), *both_scaled))
    total = scope.emit(
        _without_zero(_Left(x, _scalar(zero, "int32", scope)), weights, narrow, scope)
    )
    factor, factors = _scalar(scale, "float32", scope), scales.value.numpy()
    factors = factors.reshape(()) if factors.size == 1 else factors
    both: Any = relax.op.multiply(factor, derived(relax.const(factors), "reshape", [scales]))
    if isinstance(factor, GenericConst):
        both = derived(relax.const(factor.value.numpy() * factors), "multiply", [scales])
    return relax.op.multiply(scope.emit(relax.op.astype(total, "float32")), both)


def _without_zero(left: _Left, weights: _Weights, narrow: GenericConst, scope: Scope) -> Any:
    """Multiply bytes, and take the left operand's zero point times the columns' sums away."""
    total = relax.op.matmul(left.data, narrow, out_dtype="int32")
    if left.zero is None:
        return total
    sums = weights.values.sum(axis=-2, keepdims=True).astype("int32")  # wraps around
    if isinstance(left.zero, GenericConst):
        zero = left.zero.value.numpy().astype("int32")
        if not zero.any():
            return total
        row: Any = derived(relax.const(zero * sums), "zero_point", [weights.source])
    else:
        column_sums = derived(relax.const(sums), "sum", [weights.source])
        row = scope.emit(relax.op.multiply(left.zero, column_sums))
    return relax.op.subtract(scope.emit(total), row)


def _left(operand: ir.Expr, scope: Scope) -> _Left | None:
    """Match the 8-bit activation behind a cast to int32 and a zero point constant along K."""
    zero = None
    value = scope.value(operand)
    difference = scope.call(operand, "relax.subtract")
    if difference is not None:
        value, zero = scope.value(difference.args[0]), difference.args[1]
        shape = zero.ty.shape
        if shape is None or (len(shape) and not _is_one(shape[-1])):
            return None
    if op_name(value) == "relax.astype" and _dtype(value) == "int32":
        data = value.args[0]
    elif zero is None:
        data = operand
    else:
        return None
    is_same = tvm_ffi.structural_equal(data.ty.shape, operand.ty.shape)
    return _Left(data, zero) if _dtype(data) in BYTES and is_same else None


def _weights(operand: ir.Expr, scope: Scope) -> _Weights | None:
    """Evaluate constant integer weights, casts and zero points included; None for anything else."""
    value = scope.value(operand)
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        return _Weights(array.astype("int64"), value) if array.dtype.kind in "iu" else None
    if op_name(value) == "relax.astype" and _dtype(value) == "int32":
        return _weights(value.args[0], scope)
    if op_name(value) == "relax.subtract":
        a, b = (_weights(arg, scope) for arg in value.args)
        if a is not None and b is not None and a.values.ndim >= b.values.ndim:
            return _Weights(a.values - b.values, a.source)
    return None


def _scalar(expr: ir.Expr, dtype: str, scope: Scope) -> ir.Expr:
    """Convert a tensor of one element to a scalar of a dtype."""
    if isinstance(expr, GenericConst):
        return relax.const(expr.value.numpy().reshape(()).astype(dtype))
    if expr.ty.ndim:
        expr = scope.emit(relax.op.reshape(expr, []))
    return expr if _dtype(expr) == dtype else scope.emit(relax.op.astype(expr, dtype))


def _is_single(expr: ir.Expr) -> bool:
    return expr.ty.shape is not None and all(_is_one(d) for d in expr.ty.shape)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tvm.tirx.IntImm) and int(extent) == 1


def _dtype(expr: ir.Expr) -> str:
    return str(expr.ty.dtype.dtype)


def _record(verdict: Any, code: str, sentence: str) -> None:
    record(Decision("relax.matmul", "", verdict, code, sentence))
