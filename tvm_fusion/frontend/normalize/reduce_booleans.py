"""Largest and smallest booleans, which TVM has no limits for: any and all of them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .engine import Scope, op_name, rewrite

_PAIRS = {"relax.maximum": relax.op.logical_or, "relax.minimum": relax.op.logical_and}


@tvm.transform.module_pass(opt_level=0, name="ReduceBooleans")
class ReduceBooleans:
    """``max(b) = bool(max(int8(b)))``, ``maximum(a, b) = a or b``, and so the smallest.

    TOPI starts a maximum from the lowest number of a type; TVM 0.27 raises an internal error for
    ``bool``.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every function that is ours."""
        return rewrite(mod, _reduce)


def _reduce(value: Any, scope: Scope) -> Any:
    name = op_name(value)
    if name not in ("relax.max", "relax.min", *_PAIRS):
        return None
    ty = value.args[0].ty
    if not isinstance(ty, relax.TensorType) or str(ty.dtype.dtype) != "bool":
        return None
    if name in _PAIRS:
        return _PAIRS[name](*value.args)
    numbers = scope.emit(relax.op.astype(value.args[0], "int8"))
    reduced = relax.Call(value.op, [numbers, *value.args[1:]], value.attrs)
    return relax.op.astype(scope.emit(reduced), "bool")
