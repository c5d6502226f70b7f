"""Expand integer powers by repeated squaring."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

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
