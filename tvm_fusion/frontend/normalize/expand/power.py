"""Expand powers with small constant exponents into products and square roots."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm_ffi import structural_equal

from ...tensor_types import dtype_of
from ..engine import Scope, op_name, rewrite_pass

op = relax.op
_HIGHEST = 126  # even; from there on every power but those of -1, 0 and 1 has overflowed


@rewrite_pass
def IntegerPower(value: Any, scope: Scope) -> Any:
    """``x^e`` as the product of ``x^(2^k)`` over the bits ``k`` of ``e``.

    TVM has powers of floats only. Overflow wraps around; from 127 on, exponents count as 126 or 127
    by their parity. A negative exponent gives 0 but for ``x`` of 1 and -1. Legalization runs this:
    laws of algebra find nothing in some thirty operators on bits.
    """
    if op_name(value) != "relax.power":
        return None
    dtypes = {dtype_of(arg) for arg in value.args}
    if len(dtypes) != 1 or not next(iter(dtypes)).startswith(("int", "uint")):
        return None
    x, exponent = value.args
    dtype = dtype_of(x)

    def number(n: int) -> Any:
        return relax.const(np.array(n, dtype), dtype)

    emit = scope.emit
    known = _largest(exponent)
    is_odd = emit(op.equal(emit(op.bitwise_and(exponent, number(1))), number(1)))
    limit = emit(op.where(is_odd, number(_HIGHEST + 1), number(_HIGHEST)))
    left = emit(op.minimum(exponent, limit)) if known is None else exponent
    bits = (_HIGHEST if known is None else known).bit_length()
    # Of the result's shape, whichever of the two is broadcast.
    result = emit(op.where(is_odd, x, number(1)))
    power = x
    for k in range(1, bits):
        power = emit(op.multiply(power, power))
        bit = emit(op.bitwise_and(left, number(1 << k)))
        is_set = emit(op.not_equal(bit, number(0)))
        result = emit(op.multiply(result, emit(op.where(is_set, power, number(1)))))
    if known is not None or dtype.startswith("uint"):
        return result
    below = emit(op.less(exponent, number(0)))
    sign = emit(op.where(is_odd, number(-1), number(1)))
    of_minus_one = emit(op.where(emit(op.equal(x, number(-1))), sign, number(0)))
    inverse = emit(op.where(emit(op.equal(x, number(1))), number(1), of_minus_one))
    return op.where(below, inverse, result)


def _largest(exponent: Any) -> int | None:
    """Return the largest constant exponent; None if one is negative, very large or unknown."""
    if not isinstance(exponent, GenericConst):
        return None
    numbers = exponent.value.numpy()
    if not numbers.size or not 0 <= int(numbers.min()) <= int(numbers.max()) <= _HIGHEST:
        return None
    return int(numbers.max())


@rewrite_pass
def ExpandPower(value: Any, scope: Scope) -> Any:
    """``x^2 = x*x``, ``x^3 = x*x*x``, ``x^0.5 = sqrt(x)``, ``x^-0.5 = rsqrt(x)``, ``x^1 = x``.

    A library's ``pow`` costs dozens of instructions, and TVM warns of it. Exporters write RMS norms
    with a power and with a product alike; after this there is one spelling. The results differ from
    ``pow`` by the rounding of one product.
    """
    if op_name(value) != "relax.power" or not isinstance(value.args[1], GenericConst):
        return None
    x, exponent = value.args[0], value.args[1].value.numpy()
    floating = "float" in dtype_of(value)
    if exponent.size != 1 or not floating or not structural_equal(x.ty, value.ty):
        return None
    number = float(exponent.reshape(-1)[0])
    if number == 1.0:
        return x
    if number == 2.0:
        return relax.op.multiply(x, x)
    if number == 3.0:
        return relax.op.multiply(scope.emit(relax.op.multiply(x, x)), x)
    if number == 0.5:
        return relax.op.sqrt(x)
    return relax.op.rsqrt(x) if number == -0.5 else None
