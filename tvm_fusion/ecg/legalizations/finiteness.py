"""Tests for NaN and infinity of bfloat16, which TVM's tests do not take."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, relax, te, tirx

from .broadcast import elementwise
from .norms import Legalization


def _legalization(name: str, test: Callable[[ir.Expr], ir.Expr]) -> Legalization:
    def value(x: ir.Expr) -> ir.Expr:
        return test(tirx.Cast("float32", x) if str(x.ty.dtype) == "bfloat16" else x)

    def compute(x: te.Tensor) -> te.Tensor:
        return elementwise(value, [x], f"T_{name}")

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return bb.call_te(compute, *call.args, primfunc_name_hint=name)

    return legalize


#: Each tests the same number in float32, which holds every one of bfloat16.
FINITENESS = {
    f"relax.{name}": _legalization(name, test)
    for name, test in (
        ("isnan", tirx.isnan),
        ("isinf", tirx.isinf),
        ("isfinite", tirx.isfinite),
    )
}
