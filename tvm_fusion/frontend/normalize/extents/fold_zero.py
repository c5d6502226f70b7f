"""Fold operators over tensors with zero extents."""

from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from ....core.untouched import is_lowered, is_rewritable, is_scheduled
from ...tensor_types import static
from ..engine import Scope, op_name, rewrite, rewrite_pass
from .empty_operands import fields, has_zero, result_of_empty


@rewrite_pass
def ConcatEmpty(value: Any, scope: Scope) -> Any:
    """Leave operands without elements out of concatenations.

    A causal convolution with a kernel of one concatenates a state of no elements. As a constant,
    TVM 0.27 would write it into an executable that it cannot read ("Invalid DLTensor file format").
    """
    if op_name(value) != "relax.concat":
        return None
    operands = scope.value(value.args[0])
    if not isinstance(operands, relax.Tuple) or value.attrs.axis is None:
        return None
    axis = int(value.attrs.axis)
    kept = [field for field in operands.fields if not _is_empty(field.ty, axis)]
    if not kept or len(kept) == len(operands.fields):
        return None
    return kept[0] if len(kept) == 1 else relax.op.concat(kept, axis)


def _is_empty(ty: Any, axis: int) -> bool:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return False
    return static(ty.shape[axis]) == 0


# Calls of functions, and what is no operator over tensors: they keep their operands and results.
_NO_OPERATORS = (
    *("relax.call_", "relax.invoke_", "relax.builtin.", "relax.memory.", "relax.vm."),
    *("relax.ccl.", "relax.dist.", "relax.inspect.", "relax.grad."),
)
# Their own results have zero extents; applying the pass again must change nothing.
_CREATE = frozenset({"relax.zeros", "relax.ones", "relax.full", "relax.null_value"})


@tvm.transform.module_pass(opt_level=0, name="FoldZeroExtents")
class FoldZeroExtents:
    """Replace operators whose results or operands have no elements by what they give.

    A result with a zero extent becomes ``zeros``; a reduction of no elements is its identity
    (sum 0, prod 1, max -inf, min inf), a mean of none NaN, a product over K = 0 zeros.
    Everything that divides by extents, as legalizations, schedules and cost models do, so never
    meets a zero. Constants without elements become ``zeros`` as well, for :class:`ConcatEmpty`'s
    reason.

    Raises
    ------
    UserError
        For what has no result: an element chosen where there is none.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every rewritable function."""
        functions = [func for func in mod.functions.values() if is_rewritable(func)]
        return rewrite(mod, partial(_fold, mod)) if any(map(_meets_zero, functions)) else mod


def _meets_zero(func: relax.Function) -> bool:
    found = False

    def visit(expr: Any) -> None:
        nonlocal found
        if isinstance(expr, (relax.Var, GenericConst)):
            found = found or any(map(has_zero, fields(expr.ty)))

    relax.analysis.post_order_visit(func, visit)
    return found


def _fold(mod: tvm.IRModule, value: Any, scope: Scope) -> Any:
    if is_lowered(scope.func):
        return None
    source = scope.value(value.tuple_value) if isinstance(value, relax.TupleGetItem) else value
    if isinstance(source, GenericConst) or _is_operator(source) or _is_copy(mod, value):
        empty = _zeros(value.ty, scope)
        if empty is not None:
            return empty
    if op_name(value) == "relax.split" and any(map(has_zero, fields(value.ty))):
        return _parts(value, scope)
    if _is_operator(value) and any(has_zero(ty) for arg in value.args for ty in fields(arg.ty)):
        known = result_of_empty(value)
        if known is not None:
            return known
    return _without_constants(value, scope)


def _is_operator(value: Any) -> bool:
    name = op_name(value)
    return bool(name) and not name.startswith(_NO_OPERATORS) and name not in _CREATE


def _is_copy(mod: tvm.IRModule, value: Any) -> bool:
    """Whether a call of an unscheduled PrimFunc reads tensors.

    One that renames elements would become a reshape, which takes a zero for the operand's extent.
    """
    if op_name(value) != "relax.call_tir" or not value.args[1].fields:
        return False
    return not is_scheduled(mod[value.args[0]])


def _zeros(ty: Any, scope: Scope) -> Any:
    """Make a tensor, or a tuple of them, if none has any element; None if one may have some."""
    if isinstance(ty, relax.TupleType):
        if not ty.fields or not all(map(has_zero, ty.fields)):
            return None
        return relax.Tuple([scope.emit(_zeros(field, scope)) for field in ty.fields])
    if not has_zero(ty) or ty.vdevice is not None:
        return None
    return relax.op.zeros(ty.shape, str(ty.dtype.dtype))


def _parts(split: relax.Call, scope: Scope) -> Any:
    """Slice a tensor into parts of which some have no elements; TVM refuses equal indices."""
    x, axis = split.args[0], int(split.attrs.axis) % split.args[0].ty.ndim
    extents = [part.shape[axis] for part in split.ty.fields]
    if not all(isinstance(n, tirx.IntImm) for n in extents) or sum(map(int, extents)) != int(
        x.ty.shape[axis]
    ):
        return None
    parts, start = [], 0
    for part, extent in zip(split.ty.fields, map(int, extents), strict=True):
        end = start + extent
        part = relax.op.strided_slice(x, [axis], [start], [end]) if extent else _zeros(part, scope)
        parts.append(scope.emit(part))
        start = end
    return relax.Tuple(parts)


def _without_constants(value: Any, scope: Scope) -> Any:
    """Replace constants without elements among the operands, also in tuples."""

    def kept(expr: Any) -> Any:
        if isinstance(expr, GenericConst) and has_zero(expr.ty):
            return scope.emit(_zeros(expr.ty, scope))
        if isinstance(expr, relax.Tuple):
            fields = [kept(field) for field in expr.fields]
            same = all(a is b for a, b in zip(fields, expr.fields, strict=True))
            return expr if same else relax.Tuple(fields)
        return expr

    if isinstance(value, relax.Tuple):
        new = kept(value)
        return None if new is value else new
    if not isinstance(value, relax.Call):
        return None
    args = list(value.args)
    new_args = [kept(arg) for arg in args]
    if all(a is b for a, b in zip(new_args, args, strict=True)):
        return None
    return relax.Call(value.op, new_args, value.attrs, value.ty_args)
