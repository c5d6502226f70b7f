"""Rewrite comparisons of booleans as logic."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .engine import Scope, op_name, rewrite_pass


@rewrite_pass
def CompareBooleans(value: Any, scope: Scope) -> Any:
    """``equal(a, b) = not (a xor b)`` and ``not_equal(a, b) = a xor b`` for booleans.

    TVM 0.27 takes ``bool`` for a floating point type when it compares, and LLVM refuses the module.
    """
    if op_name(value) not in ("relax.equal", "relax.not_equal"):
        return None
    ty = value.args[0].ty
    if not isinstance(ty, relax.TensorType) or str(ty.dtype.dtype) != "bool":
        return None
    differ = relax.op.logical_xor(*value.args)
    if op_name(value) == "relax.not_equal":
        return differ
    return relax.op.logical_not(scope.emit(differ))
