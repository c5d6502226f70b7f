"""Inline group functions into their callers, so that they can be planned again."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...core.untouched import PRIMITIVE, is_external
from .emit import is_group


def inline_groups(mod: tvm.IRModule, groups: Container[ir.GlobalVar]) -> tvm.IRModule:
    """Write groups out where they are called, so that they can be planned again.

    TVM's own inlining leaves the symbolic variables of what it writes out undefined.

    Parameters
    ----------
    mod
        With calls of the groups in dataflow blocks.

    Returns
    -------
    tvm.IRModule
        Without them.
    """
    mod = mod.clone()
    for gvar, func in list(mod.functions.items()):
        if isinstance(func, relax.Function) and gvar not in groups:
            blocks = [_block(mod, block, groups) for block in func.body.blocks]
            body = relax.SeqExpr(blocks, func.body.body)
            rewritten = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
            mod.update_func(gvar, rewritten)
    for gvar in [g for g in mod.functions if g in groups]:
        del mod[gvar]
    return relax.transform.Normalize()(mod)


def _block(
    mod: tvm.IRModule, block: relax.BindingBlock, groups: Container[ir.GlobalVar]
) -> relax.BindingBlock:
    if not isinstance(block, relax.DataflowBlock):
        return block
    bindings: list[relax.Binding] = []
    for binding in block.bindings:
        value = binding.value
        if isinstance(value, relax.Call) and value.op in groups:
            func = mod[value.op]
            known = arguments_of(func, list(value.args))
            for inner in func.body.blocks[0].bindings:
                type_ = _substitute(inner.var.ty, known)
                var = relax.DataflowVar(inner.var.name, type_, value.span)
                bindings.append(relax.VarBinding(var, _value(inner.value, known)))
                known[inner.var] = var
            result = _substitute(func.body.body, known)
            bindings.append(relax.VarBinding(binding.var, result))
        else:
            bindings.append(binding)
    return relax.DataflowBlock(bindings)


def arguments_of(func: relax.Function, args: list[relax.Expr]) -> dict[ir.Var, ir.Expr]:
    """Map parameters, and symbolic variables that they define, to what a call passes."""
    known: dict[ir.Var, ir.Expr] = {}
    for param, arg in zip(func.params, args, strict=True):
        known[param] = arg
        if isinstance(param.ty, relax.ShapeType):
            known |= dict(zip(param.ty.values, arg.values, strict=True))
        if isinstance(param.ty, relax.TensorType):
            extents = zip(param.ty.shape.values, arg.ty.shape.values, strict=True)
            known |= {mine: theirs for mine, theirs in extents if isinstance(mine, ir.Var)}
    return known


def _value(value: relax.Expr, known: Mapping[ir.Var, ir.Expr]) -> relax.Expr:
    """Substitute in a member's value; the PrimFunc's name must stay the very same object."""
    if not isinstance(value, relax.Call):
        return _substitute(value, known)
    name, *args = value.args
    types = [_substitute(t, known) for t in value.ty_args]
    return relax.Call(value.op, [name, *(_substitute(a, known) for a in args)], value.attrs, types)


def _substitute(expr, known: Mapping[ir.Var, ir.Expr]):
    return tvm_ffi.structural_map(expr, (ir.Var, lambda v: known.get(v, v)), order="post")


# Merge groups that TVM's own FuseOps has made into PrimFuncs, as TVM's FuseTIR does.
def merge_primitives(mod: tvm.IRModule) -> tvm.IRModule:
    """Run FuseTIR where Primitive functions over ``call_tir`` are left, which no VM can call.

    Those for external code generators (Composite, Codegen) and those over anything else than
    PrimFuncs stay.
    """
    return relax.transform.FuseTIR()(mod) if any(map(_is_primitive(mod), mod.functions)) else mod


def _is_primitive(mod: tvm.IRModule) -> Any:
    def test(gvar: tvm.ir.GlobalVar) -> bool:
        func = mod[gvar]
        if not isinstance(func, relax.Function) or is_group(func) or is_external(func):
            return False
        return bool(func.attrs and func.attrs.get(PRIMITIVE, False)) and _calls_kernels(mod, func)

    return test


def _calls_kernels(mod: tvm.IRModule, func: relax.Function) -> bool:
    calls = [
        binding.value
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    return all(
        call.op == tvm.ir.Op.get("relax.call_tir")
        and isinstance(mod.functions.get(call.args[0]), tirx.PrimFunc)
        for call in calls
    )
