"""A group in the IR: a Relax function marked ``Primitive``, as TVM's own FuseOps makes them.

Its body calls the members' PrimFuncs, one binding each, so that a later stage, in this package or
in somebody else's pipeline, can read the group again or merge it by FuseTIR.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import ir, relax, tirx

from ..ecg.graph import Operator, Value
from .group import Group

TEMPLATE = "tvm_fusion.template"  # attribute: which template claimed the group


def primitive_function(group: Group, attrs: Mapping[str, object] | None = None) -> relax.Function:
    """Write a group as a Relax function.

    Parameters are the group's inputs, then its scalars; constants become parameters, since FuseTIR
    takes none inside. Several outputs make a tuple.

    Parameters
    ----------
    group : Group
        The group.
    attrs : Mapping, optional
        Attributes besides ``Primitive``.

    Returns
    -------
    relax.Function
        With symbolic variables of its own.
    """
    exprs: dict[Value, relax.Expr] = {}
    params: list[relax.Var] = []
    for number, value in enumerate(group.inputs):
        name = f"constant{number}" if value.constant is not None else value.name
        exprs[value] = relax.Var(name, value.type)
        params.append(exprs[value])
    bindings = []
    single = len(group.outputs) == 1
    for op in group.members:
        is_result = single and op.results == group.outputs
        var = (relax.Var if is_result else relax.DataflowVar)(op.name, op.binding.var.ty)
        bindings.append(relax.VarBinding(var, call_tir(op, exprs)))
        if isinstance(op.binding.var.ty, relax.TupleType):
            for i, value in enumerate(op.results):
                is_result = single and value is group.outputs[0]
                item = (relax.Var if is_result else relax.DataflowVar)(value.name, value.type)
                bindings.append(relax.VarBinding(item, relax.TupleGetItem(var, i)))
                exprs[value] = item
        else:
            exprs[op.results[0]] = var
    if single:
        result = exprs[group.outputs[0]]
    else:
        result = relax.Var("outputs", relax.TupleType([v.type for v in group.outputs]))
        fields = [exprs[v] for v in group.outputs]
        bindings.append(relax.VarBinding(result, relax.Tuple(fields)))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    func = relax.Function([*params, *group.scalars], body, result.ty, True)
    func = func.with_attrs({"Primitive": True, **(attrs or {})})
    return relax.utils.copy_with_new_vars(func)


def call_tir(op: Operator, exprs: Mapping[Value, relax.Expr]) -> relax.Call:
    """Write the call of an operator's PrimFunc over new operands."""
    args = [exprs[o] if isinstance(o, Value) else o for o in op.operands]
    old = op.binding.value
    return relax.Call(old.op, [old.args[0], relax.Tuple(args)], old.attrs, old.ty_args)


def merged(group: Group) -> tirx.PrimFunc:
    """Merge the members' PrimFuncs by TVM's FuseTIR."""
    name = tvm.ir.GlobalVar("group")
    func = primitive_function(group)
    relax.expr._update_type(name, func.ty)
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {op.gvar: op.func for op in group.members}
    params = [relax.Var(f"p{i}", v.type) for i, v in enumerate(group.inputs)]
    functions[name] = func
    call = relax.Call(name, [*params, *group.scalars])
    result = relax.Var("result", func.ret_ty)
    body = relax.SeqExpr([relax.DataflowBlock([relax.VarBinding(result, call)])], result)
    main = relax.Function([*params, *group.scalars], body, func.ret_ty, True)
    main = main.with_attr("global_symbol", "main")  # FuseTIR drops what nothing public calls
    functions[ir.GlobalVar("main")] = relax.utils.copy_with_new_vars(main)
    fused = relax.transform.FuseTIR()(tvm.IRModule(functions))
    return fused[fused["main"].body.blocks[0].bindings[0].value.args[0]]
