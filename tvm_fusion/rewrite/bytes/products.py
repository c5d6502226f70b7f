"""Products and convolutions of quantized tensors as those of 8-bit integers, dequantized after."""

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from ...core.constants.weight_names import derived
from ...frontend.normalize.engine import Scope, op_name, rewrite
from ...frontend.tensor_types import dtype_of
from ..egraph.changes import Change, note
from .convolutions import convolution
from .operands import (
    WIDE_COLUMNS,
    ByteTensor,
    IntegerWeights,
    byte_tensor,
    decide,
    dequantized,
    integer_weights,
    is_single,
    scalar,
    scaled,
)
from .widened_convolutions import CONVOLUTIONS


@tvm.transform.module_pass(opt_level=0, name="ByteProducts")
class ByteProducts:
    """``(x - z) W = x W - z (1' W)`` and ``s(x - z) t(W - u) = st ((x - z)(W - u))``.

    Importers write quantised products with operands widened to int32 or dequantised to float32:
    four times the memory, and other instructions. Where the right operand is constant, its zero
    point goes into it if the differences still are bytes, else the middle of each column is taken
    out of it, times the sums of the rows; the left one's zero point becomes a row of constants,
    times the sums of the columns. Integers are exact, wrapped around in both forms; the
    float32 product of dequantised operands is rounded once for each result, not for each term.
    Convolutions are products of the windows of an image: see :mod:`.convolutions`.

    Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", section 2.3.

    Examples
    --------
    >>> def quantized(x):
    ...     scale, zero = relax.const(np.float32(0.1)), relax.const(np.uint8(128))
    ...     packed = relax.const(np.arange(-32, 32, dtype="int8").reshape(16, 4))
    ...     b = op.dequantize(packed, scale, relax.const(np.int8(0)))
    ...     return op.matmul(op.dequantize(x, scale, zero), b)
    >>> calls(ByteProducts()(module(quantized, (8, 16), dtype="uint8")))
    ['relax.matmul', 'relax.subtract', 'relax.astype', 'relax.multiply']
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function."""
        return rewrite(mod, _product)


def _product(value: Any, scope: Scope) -> Any:
    if op_name(value) in CONVOLUTIONS:
        return convolution(value, scope)
    if op_name(value) != "relax.matmul" or value.args[1].ty.ndim < 2:
        return None
    dtype = dtype_of(value)
    if dtype == "int32":
        return _integers(value, scope)
    return _dequantised(value, scope) if dtype == "float32" else None


def _integers(product: relax.Call, scope: Scope) -> Any:
    left = byte_tensor(product.args[0], scope)
    weights = integer_weights(product.args[1], scope)
    if left is None or weights is None:
        return None
    total = _bytes_product(left.data, weights, scope)
    if total is None:
        decide(product, scope, "refused", *WIDE_COLUMNS)
        return None
    if total.args[0].same_as(product.args[0]) and total.args[1].same_as(product.args[1]):
        return None
    decide(
        product,
        scope,
        "accepted",
        "bytes",
        "Both operands are 8-bit integers: they are multiplied as such and accumulated in int32.",
    )
    note(Change("", "", ("byte_products",), "(x - z) W", "x W - z (1' W)"))
    return _without_zero(left, weights, total, scope)


def _dequantised(product: relax.Call, scope: Scope) -> Any:
    found = dequantized(product, product.args[1].ty.ndim - 1, (-2,), scope)
    if found is None:
        return None
    narrow = _bytes_product(found.data, found.weights, scope)
    if narrow is None:
        decide(product, scope, "refused", *WIDE_COLUMNS)
        return None
    decide(
        product,
        scope,
        "accepted",
        "bytes",
        "The quantized operands are multiplied as 8-bit integers, and the result is dequantized.",
    )
    both_scaled = ("s(x - z) t(W - u)", "s t ((x - z) (W - u))")
    note(Change("", "", ("byte_products",), *both_scaled))
    left = ByteTensor(found.data, scalar(found.zero, "int32", scope))
    total = scope.emit(_without_zero(left, found.weights, narrow, scope))
    shape = () if is_single(found.scales) else found.scales.value.shape
    return scaled(total, found.scale, found.scales, shape, scope)


def _bytes_product(data: Any, weights: IntegerWeights, scope: Scope) -> Any:
    """Multiply bytes; of columns that are no bytes, ``x W = x (W - 1 c') + (x 1) c'``."""
    narrow = weights.bytes()
    if narrow is not None:
        return relax.op.matmul(data, narrow, out_dtype="int32")
    shifted = weights.shifted() if weights.values.size else None
    if shifted is None:
        return None
    left, row = shifted
    total = scope.emit(relax.op.matmul(data, left.bytes(), out_dtype="int32"))
    sums = scope.emit(relax.op.sum(scope.emit(relax.op.astype(data, "int32")), -1, True))
    added = scope.emit(relax.op.multiply(sums, derived(relax.const(row), "middle", [left.source])))
    return relax.op.add(total, added)


def _without_zero(left: ByteTensor, weights: IntegerWeights, total: Any, scope: Scope) -> Any:
    """Take the left operand's zero point times the columns' sums away from a product of bytes."""
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
