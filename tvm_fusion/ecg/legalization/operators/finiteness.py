"""Tests for NaN and infinity of bfloat16, which TVM's tests do not take."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ..expand import Legalization
from .broadcast import elementwise


def _legalization(name: str, test: Callable[[ir.Expr], ir.Expr]) -> Legalization:
    def value(x: ir.Expr) -> ir.Expr:
        return test(tirx.Cast("float32", x) if str(x.ty.dtype) == "bfloat16" else x)

    return elementwise(name, value)


#: Each tests the same number in float32, which holds every one of bfloat16.
FINITENESS = {
    f"relax.{name}": _legalization(name, test)
    for name, test in (
        ("isnan", tirx.isnan),
        ("isinf", tirx.isinf),
        ("isfinite", tirx.isfinite),
    )
}
