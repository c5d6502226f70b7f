"""Expand powers with small constant exponents into products and square roots."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import GenericConst
from tvm_ffi import structural_equal

from ...tensor_types import dtype_of
from ..engine import Scope, op_name, rewrite_pass


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
