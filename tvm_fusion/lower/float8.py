"""Float8 on a CPU, cast by integer arithmetic on its bits.

TVM 0.27's FP8ComputeLegalize moves exponent and mantissa alone: zero of ``float8_e4m3fn`` becomes
2^-7, subnormal numbers are off, NaN is a number, and what is rounded is cut off. Here casts are
written by :mod:`tvm_fusion.core.constants.narrow_types` before loops become vectors.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.target import target_kind
from ..core.constants.narrow_types import FLOATS, STORAGE, decode, encode

FLOAT = "float32"


@tirx.transform.prim_func_pass(opt_level=0, name="CastFloat8")
class CastFloat8:
    """Write casts from and to float8 in functions for a CPU."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Replace the casts in one function."""
        if target_kind(func) != "llvm":
            return func
        return tvm_ffi.structural_map(func, [(tirx.Cast, _written)], order="post")


def _written(cast: tirx.Cast) -> ir.Expr:
    source, target = str(cast.value.ty.dtype), str(cast.ty.dtype)
    value = cast.value
    if source in FLOATS:
        value = decode(tirx.reinterpret(STORAGE, value), source)
    if target in FLOATS:
        wide = value if str(value.ty.dtype) == FLOAT else tirx.Cast(FLOAT, value)
        # As PyTorch: infinity where there is one, the largest number elsewhere.
        saturates = FLOATS[target].infinity is None
        return tirx.reinterpret(target, encode(wide, target, saturates))
    if source in FLOATS:
        return value if target == FLOAT else tirx.Cast(target, value)
    return cast
