"""Recover relax.clip from calls of elementwise maximum and minimum PrimFuncs."""

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst, TensorLoad
from tvm.s_tir import SBlockRealize
from tvm_ffi import structural_equal

from ..tensor_types import dtype_of
from .engine import Scope, op_name, rewrite, rewrite_pass

# Clamp the limits of integer clips to the range of their dtype.


@rewrite_pass
def ClipIntegers(value: Any, scope: Scope) -> Any:
    """``clip(i, 0, inf)`` becomes ``maximum(i, 0)``; limits that the type cannot hold are dropped.

    Importers write an open end as infinity, which TVM 0.27 cannot make an integer of.
    """
    if op_name(value) != "relax.clip" or not isinstance(value.ty, relax.TensorType):
        return None
    dtype = dtype_of(value)
    ends = [end for end in map(_number, value.args[1:]) if end is not None and end == end]
    if not dtype.startswith(("int", "uint")) or len(ends) < 2:
        return None
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    low, high = (_whole(end, up, least, most) for end, up in zip(ends, (True, False), strict=True))
    if (low, high) == (least, most):
        return value.args[0]
    if high == most:
        return relax.op.maximum(value.args[0], relax.const(np.array(low, dtype), dtype))
    if low == least:
        return relax.op.minimum(value.args[0], relax.const(np.array(high, dtype), dtype))
    if ends == [low, high] and all(isinstance(end, int) for end in ends):
        return None
    limits = [relax.prim_value(tirx.IntImm(dtype, end)) for end in (low, high)]
    return relax.op.clip(value.args[0], *limits)


def _number(end: Any) -> float | int | None:
    if isinstance(end, tirx.IntImm):
        return int(end.value)
    return float(end.value) if isinstance(end, tirx.FloatImm) else None


def _whole(end: float | int, up: bool, least: int, most: int) -> int:
    """Round a limit towards what it allows, and bring it into the type's range."""
    if isinstance(end, float) and math.isinf(end):
        return most if end > 0 else least
    whole = end if isinstance(end, int) else (math.ceil(end) if up else math.floor(end))
    return min(max(whole, least), most)


_OPERATORS = {tirx.Max: relax.op.maximum, tirx.Min: relax.op.minimum}


@tvm.transform.module_pass(opt_level=0, name="RecoverClip")
class RecoverClip:
    """``call_tir(minimum, call_tir(maximum, x, low), high) = clip(x, low, high)``.

    For constant, finite bounds; a bound that is infinite limits nothing and is dropped, and one
    bound alone becomes ``relax.maximum`` or ``relax.minimum``. A PrimFunc is known by what it
    computes, not by its name. Bounds that are expressions must be folded before.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every rewritable function; drop PrimFuncs that are no longer called."""
        limits = {
            gvar.name_hint: limit
            for gvar, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc) and (limit := _elementwise_limit(func)) is not None
        }
        if not limits:
            return mod
        result = rewrite(mod, lambda value, scope: _to_limit(value, scope, limits))
        result = rewrite(result, _join)
        return _without_unused(result, limits)


def _to_limit(value: Any, scope: Scope, limits: dict[str, tuple[type, float | None]]) -> Any:
    if op_name(value) != "relax.call_tir" or value.args[0].name_hint not in limits:
        return None
    kind, bound = limits[value.args[0].name_hint]
    operands = list(value.args[1].fields)
    data = operands[0]
    if bound is None:
        const = scope.value(operands[1])
        if not isinstance(const, GenericConst):
            return None
        bound = const.value.numpy().item()
    # A call_tir states its result's type, so only a plain elementwise use may be replaced.
    if not structural_equal(data.ty, value.ty) or math.isnan(bound):
        return None
    if bound == (-math.inf if kind is tirx.Max else math.inf):
        return data
    if math.isinf(bound):
        return None
    return _OPERATORS[kind](data, relax.const(bound, dtype_of(data)))


def _join(value: Any, scope: Scope) -> Any:
    if op_name(value) != "relax.minimum" or not isinstance(value.args[1], GenericConst):
        return None
    inner = scope.call(value.args[0], "relax.maximum")
    if inner is None or not isinstance(inner.args[1], GenericConst):
        return None
    low, high = inner.args[1].value.numpy(), value.args[1].value.numpy()
    if low.ndim or high.ndim or low > high or scope.uses(value.args[0]) != 1:
        return None
    return relax.op.clip(inner.args[0], _immediate(low), _immediate(high))


def _immediate(scalar: Any) -> Any:
    dtype = str(scalar.dtype)
    kind = tirx.IntImm if scalar.dtype.kind in "iu" else tirx.FloatImm
    return kind(dtype, scalar.item())


def _elementwise_limit(func: tirx.PrimFunc) -> tuple[type, float | None] | None:
    """Recognise ``out[i...] = max(in[i...], bound)``.

    Returns
    -------
    (type, float or None) or None
        ``tirx.Max`` or ``tirx.Min``, and the bound where it is a literal; None as the bound where
        it is the second parameter, a tensor without axes. None for any other function.
    """
    buffers = list(func.params)
    if len(buffers) not in (2, 3) or not isinstance(func.body, SBlockRealize):
        return None
    body = func.body.block.body
    while isinstance(body, tirx.For):
        body = body.body
    store = body.block.body if isinstance(body, SBlockRealize) else None
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, (tirx.Max, tirx.Min)):
        return None
    variables = [iv.var for iv in body.block.iter_vars]
    data, bound = store.value.a, store.value.b
    if not store.buffer.same_as(buffers[-1]) or not _reads(data, buffers[0], variables):
        return None
    if not _same(store.indices, variables):
        return None
    if len(buffers) == 2 and isinstance(bound, (tirx.FloatImm, tirx.IntImm)):
        return type(store.value), bound.value
    if len(buffers) == 3 and _reads(bound, buffers[1], []):
        return type(store.value), None
    return None


def _reads(expr: Any, buffer: Any, variables: list[Any]) -> bool:
    return (
        isinstance(expr, TensorLoad)
        and expr.source.same_as(buffer)
        and _same(expr.indices, variables)
    )


def _same(indices: Any, variables: list[Any]) -> bool:
    return len(indices) == len(variables) and all(
        i.same_as(v) for i, v in zip(indices, variables, strict=True)
    )


def _without_unused(mod: tvm.IRModule, names: dict[str, Any]) -> tvm.IRModule:
    """Drop those of the named PrimFuncs that are private and that no Relax function mentions."""
    mentioned: set[str] = set()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            mentioned.update(
                arg.name_hint for arg in [expr.op, *expr.args] if isinstance(arg, tvm.ir.GlobalVar)
            )

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    unused = [
        gvar
        for gvar, func in mod.functions.items()
        if gvar.name_hint in names
        and gvar.name_hint not in mentioned
        and "global_symbol" not in (func.attrs or {})
    ]
    if unused:
        mod = mod.clone()
        for gvar in unused:
            del mod[gvar]
    return mod
