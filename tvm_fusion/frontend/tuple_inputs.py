"""Flatten tuple parameters to one input for each tensor."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..core.untouched import is_rewritable


def without_tuples(mod: tvm.IRModule) -> tvm.IRModule:
    """Give public functions a parameter for each field of a parameter that is a tuple.

    They are called ``t_0``, ``t_1``, and the fields of a tuple inside ``t_1_0``, ``t_1_1``. An
    artifact's inputs are tensors; private functions, which others call, keep their parameters, and
    so do functions that take something else than tensors besides, such as a cache: callers give
    them what they always gave.

    Parameters
    ----------
    mod : tvm.IRModule
        Any module.

    Returns
    -------
    tvm.IRModule
        The same object if there is no such parameter.
    """
    result = mod
    for gvar, func in mod.functions.items():
        is_public = is_rewritable(func) and func.attrs and "global_symbol" in func.attrs
        if not is_public or not any(isinstance(p.ty, relax.TupleType) for p in func.params):
            continue
        if _is_called(mod, gvar) or not all(_is_of_tensors(p.ty) for p in func.params):
            continue
        result = mod.clone() if result is mod else result
        del result[gvar]
        new = tvm.ir.GlobalVar(gvar.name_hint)
        result[new] = _flattened(func)
    return result


def _flattened(func: relax.Function) -> relax.Function:
    params: list[relax.Var] = []
    bindings: list[relax.Binding] = []

    def fields(name: str, ty: Any) -> relax.Expr:
        if isinstance(ty, relax.TupleType):
            return relax.Tuple([fields(f"{name}_{i}", field) for i, field in enumerate(ty.fields)])
        params.append(relax.Var(name, ty))
        return params[-1]

    for param in func.params:
        if isinstance(param.ty, relax.TupleType):
            bindings.append(relax.VarBinding(param, fields(param.name, param.ty)))
        else:
            params.append(param)
    before = relax.BindingBlock(bindings)
    body = relax.SeqExpr([before, *func.body.blocks], func.body.body)
    attrs = func.attrs
    flattened = relax.Function(params, body, func.ret_ty, func.is_pure, attrs)
    if "num_input" in attrs:
        extra = len(params) - len(func.params)
        flattened = flattened.with_attr("num_input", int(attrs["num_input"]) + extra)
    return flattened


def _is_of_tensors(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(map(_is_of_tensors, ty.fields))
    return isinstance(ty, relax.TensorType)


def _is_called(mod: tvm.IRModule, gvar: tvm.ir.GlobalVar) -> bool:
    return any(
        gvar in relax.analysis.all_global_vars(func)
        for func in mod.functions.values()
        if isinstance(func, relax.Function)
    )
