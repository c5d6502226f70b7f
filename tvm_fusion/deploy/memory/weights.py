"""Lift tensor constants to parameters, whose data are stored beside the library."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from .inner_weights import hoist_constants

WEIGHTS = "tvm_fusion.weights"  # attribute of a function: the first weight's position, how many
MIN_BYTES = 1024  # smaller constants stay in the code, where they cost no argument


@dataclass(frozen=True)
class Lifted:
    """A module without large constants.

    Attributes
    ----------
    mod : tvm.IRModule
        Functions with their constants as further parameters, behind their own.
    weights : dict of str to list of GenericConst
        By function, the constants that those parameters stand for, in order.
    """

    mod: tvm.IRModule
    weights: dict[str, list[GenericConst]]


def lift_constants(mod: tvm.IRModule, min_bytes: int = 0) -> Lifted:
    """Turn the tensor constants of functions into parameters of the public ones.

    Parameters
    ----------
    mod : tvm.IRModule
        Any Relax module; not changed.
    min_bytes : int
        Constants below this many bytes stay, as do scalars; but not those that a function
        returns, for its callers could write to them.

    Returns
    -------
    Lifted
        The same constant used twice is one parameter.
    """

    def is_weight(constant: GenericConst) -> bool:
        return _is_tensor(constant) and _nbytes(constant) >= min_bytes

    mod, weights = hoist_constants(mod, is_weight).clone(), {}
    for gvar, func in list(mod.functions.items()):
        if not isinstance(func, relax.Function) or not (func.attrs or {}).get("global_symbol"):
            continue
        lifter = _Lifter(mod, min_bytes, _returned(func))
        body = lifter.visit_expr(func.body)
        if not lifter.parameters:
            continue
        count = len(func.params)
        weights_at = [count, len(lifter.parameters)]
        attrs = {**dict(func.attrs), "num_input": count, WEIGHTS: weights_at}
        params = [*func.params, *lifter.parameters.values()]
        lifted = relax.Function(params, body, func.ret_ty, func.is_pure)
        mod.update_func(gvar, lifted.with_attrs(attrs))
        weights[gvar.name_hint] = list(lifter.parameters)
    return Lifted(mod, weights)


@mutator
class _Lifter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, min_bytes: int, returned: set[GenericConst]):
        super().__init__(mod)
        self.min_bytes, self.returned = min_bytes, returned
        self.parameters: dict[GenericConst, relax.Var] = {}

    def visit_generic_const_(self, constant: GenericConst) -> relax.Expr:
        small = not _is_tensor(constant) or _nbytes(constant) < self.min_bytes
        if small and constant not in self.returned:
            return constant
        if constant not in self.parameters:
            name = f"weight{len(self.parameters)}"
            self.parameters[constant] = relax.Var(name, constant.ty)
        return self.parameters[constant]


def _returned(func: relax.Function) -> set[GenericConst]:
    """Find the constants that a function returns as they are."""
    values = relax.analysis.get_var2val(func)
    found: set[GenericConst] = set()

    def follow(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var) and expr in values:
            follow(values[expr])
        elif isinstance(expr, relax.Tuple):
            for field in expr.fields:
                follow(field)
        elif isinstance(expr, relax.SeqExpr):
            follow(expr.body)
        elif isinstance(expr, relax.If):
            follow(expr.true_branch)
            follow(expr.false_branch)
        elif isinstance(expr, GenericConst) and isinstance(expr.ty, relax.TensorType):
            found.add(expr)

    follow(func.body)
    return found


def _is_tensor(constant: GenericConst) -> bool:
    """Whether a constant is a tensor with at least one axis; others print as they are."""
    return isinstance(constant.ty, relax.TensorType) and constant.ty.ndim > 0


def _nbytes(constant: GenericConst) -> int:
    bits = tvm.DataType(constant.ty.dtype).bits
    return math.prod(constant.value.shape) * ((bits + 7) // 8)
