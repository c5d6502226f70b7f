"""Rewrite boolean arithmetic as logic, since TVM generates floating point instructions for it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from ..tensor_types import dtype_of
from .engine import Scope, op_name, rewrite_pass

# Rewrite comparisons of booleans as logic.


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


op = relax.op

# ``less(a, b) = not a and b``: False is smaller than True.
_LOGIC: Mapping[str, Callable[[Any, Any, Scope], Any]] = {
    "relax.add": lambda a, b, _: op.logical_or(a, b),
    "relax.maximum": lambda a, b, _: op.logical_or(a, b),
    "relax.multiply": lambda a, b, _: op.logical_and(a, b),
    "relax.minimum": lambda a, b, _: op.logical_and(a, b),
    "relax.less": lambda a, b, scope: op.logical_and(scope.emit(op.logical_not(a)), b),
    "relax.less_equal": lambda a, b, scope: op.logical_or(scope.emit(op.logical_not(a)), b),
    "relax.greater": lambda a, b, scope: op.logical_and(a, scope.emit(op.logical_not(b))),
    "relax.greater_equal": lambda a, b, scope: op.logical_or(a, scope.emit(op.logical_not(b))),
}
_UNCHANGED = ("relax.abs", "relax.nn.relu", "relax.sign")
# By what integers: TVM's sorts know no narrow ones, sums need room, extrema do not.
_BY_INTEGERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("relax.max", "relax.min", "relax.argmax", "relax.argmin", "relax.clip"), "int8"
    ),
    **dict.fromkeys(("relax.sort", "relax.argsort", "relax.topk"), "int32"),
    "relax.cumsum": "int64",
}
_UNSORTED = ("int8", "uint8")  # which TVM's sorts do not know either


@rewrite_pass
def BooleanArithmetic(value: Any, scope: Scope) -> Any:
    """Write ``a + b`` and ``max(a, b)`` as ``a or b``, products as ``a and b``; reduce integers.

    TVM 0.27 generates floating point instructions for them, which LLVM refuses, or finds no least
    value to start with. A running sum of booleans whose result is boolean is a running ``or``.
    """
    name = op_name(value)
    dtype = dtype_of(value.args[0]) if name and len(value.args) else ""
    if dtype in _UNSORTED and _BY_INTEGERS.get(name) == "int32":
        return _by_integers(value, dtype, "int32", scope)
    if dtype != "bool":
        return None
    if name in _LOGIC and dtype_of(value.args[1]) == "bool":
        return _LOGIC[name](value.args[0], value.args[1], scope)
    if name in _UNCHANGED:
        return value.args[0]
    is_bool = dtype_of(value) == "bool"
    if name == "relax.cumsum" and not is_bool:
        widened = scope.emit(op.astype(value.args[0], dtype_of(value)))
        return relax.Call(value.op, [widened], value.attrs, value.ty_args)
    return _by_integers(value, dtype, _BY_INTEGERS[name], scope) if name in _BY_INTEGERS else None


def _by_integers(value: relax.Call, dtype: str, wide: str, scope: Scope) -> Any:
    """Compute with wider integers, and narrow every result that has the operand's type."""
    widened = scope.emit(op.astype(value.args[0], wide))
    result = scope.emit(relax.Call(value.op, [widened, *value.args[1:]], value.attrs))
    if not isinstance(result.ty, relax.TupleType):
        return _narrowed(result, value, dtype)
    fields = [scope.emit(relax.TupleGetItem(result, i)) for i in range(len(result.ty.fields))]
    types = value.ty.fields
    return relax.Tuple(
        [
            scope.emit(op.astype(field, dtype)) if str(ty.dtype.dtype) == dtype else field
            for field, ty in zip(fields, types, strict=True)
        ]
    )


def _narrowed(result: Any, value: relax.Call, dtype: str) -> Any:
    if dtype_of(value) != dtype:
        return result
    if dtype != "bool":
        return op.astype(result, dtype)
    return op.not_equal(result, relax.const(np.zeros((), dtype_of(result)), dtype_of(result)))
