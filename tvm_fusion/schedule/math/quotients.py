"""Quotients by a constant that are rounded to whole numbers, without a division.

Quantization divides by a scale. A division of 16 float32 takes 16 cycles on the CPUs of today, four
fused multiply-adds 2. After Markstein ("Computation of elementary functions on the IBM RISC
System/6000 processor", 1990) these find the same quotient::

    q = x * (1 / s);  q + (x - q * s) * (1 / s)

The rest ``x - q * s`` is exact, since it is rounded once. Rounded to whole numbers, tiny quotients
are zero either way; of huge ones a bound takes the place, so that infinity stays infinity.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext
from tvm.target.codegen import llvm_lookup_intrinsic_id

from ..._tvm.ir.target import target_kind
from ...core.tir.expressions import call_name
from ...device import device_of

_ROUND = frozenset({"round", "nearbyint"})
_MOST = 2.0**30  # of an estimate; whole numbers beyond are no results of a quantization
_SCALES = 2.0**-60, 2.0**60  # whose reciprocals and rests are normal numbers


@tirx.transform.prim_func_pass(opt_level=0, name="DivideByScales")
class DivideByScales:
    """Multiply by the reciprocal of a constant, and correct the quotient, where it is rounded.

    For CPUs with fused multiply-adds, of functions whose loops are vectors already.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Change one function."""
        if target_kind(func) != "llvm" or not device_of(func.attrs["target"]).fused_multiply_add:
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _rounded), order="post"))


def _rounded(call: ir.Call) -> ir.Expr:
    """Change what a function that rounds is called with."""
    name, value = call_name(call), call.args[-1] if call.args else None
    is_llvm = name == "call_llvm_pure_intrin" and int(call.args[0]) == _nearbyint()
    if not (name in _ROUND or is_llvm) or not isinstance(value, tirx.Div):
        return call
    scale = value.b.value if isinstance(value.b, tirx.Broadcast) else value.b
    if not isinstance(scale, tirx.FloatImm) or str(scale.ty.dtype) != "float32":
        return call
    if not _SCALES[0] <= abs(scale.value) <= _SCALES[1]:
        return call
    args = [*call.args[:-1], _quotient(value.a, value.b, scale.value)]
    return ir.Call(call.op, args, call.attrs, None, None, ret_ty=call.ty)


def _quotient(number: ir.Expr, scale: ir.Expr, value: float) -> ir.Expr:
    """Divide a scalar or a vector."""

    def filled(constant: float) -> ir.Expr:
        scalar = tirx.const(constant, "float32")
        return tirx.Broadcast(scalar, scale.lanes) if isinstance(scale, tirx.Broadcast) else scalar

    dtype = str(number.ty.dtype)
    x, estimate = tirx.Var("x", dtype), tirx.Var("estimate", dtype)
    inverse, most, least = (
        filled(one) for one in (float(np.float32(1) / np.float32(value)), _MOST, -_MOST)
    )
    bounded = tirx.Select(x * inverse < most, x * inverse, most)
    rest = _fma(dtype, estimate, filled(-value), x)
    result = _fma(dtype, rest, inverse, estimate)
    lower = tirx.Select(bounded > least, bounded, least)
    return tirx.Let(x, number, tirx.Let(estimate, lower, result))


def _fma(dtype: str, a: ir.Expr, b: ir.Expr, c: ir.Expr) -> ir.Expr:
    return tirx.call_llvm_pure_intrin(dtype, "llvm.fma", a, b, c)


@cache
def _nearbyint() -> int:
    return llvm_lookup_intrinsic_id("llvm.nearbyint")
