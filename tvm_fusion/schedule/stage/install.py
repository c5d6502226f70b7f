"""Install kernels: calls of groups become calls of PrimFuncs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...core.contract.kernel_info import record
from ...core.contract.template import Emission, Slot
from ...core.untouched import SCHEDULED
from .emit import is_group
from .pack import Packer

_CALL_TIR = ir.Op.get("relax.call_tir")
_Names = Mapping[tirx.PrimFunc, ir.GlobalVar]


def install(mod: tvm.IRModule, emitted: Mapping[ir.GlobalVar, Emission]) -> tvm.IRModule:
    """Replace groups by their kernels.

    Parameters
    ----------
    mod
        Its Relax functions call the groups.

    Returns
    -------
    tvm.IRModule
        Without those groups. Packing functions of constants are evaluated; those of other inputs
        are called where the group was, and are still to be scheduled.
    """
    builder = relax.BlockBuilder(mod.clone())
    packer = Packer(mod)
    names: dict[tirx.PrimFunc, ir.GlobalVar] = {}
    for gvar, emission in emitted.items():
        for kernel in emission.kernels:
            func = _private(kernel.func).with_attr(SCHEDULED, True)
            names[kernel.func] = builder.add_func(func, gvar.name_hint)
        for position, packing in emission.packing.items():
            name = f"{gvar.name_hint}_pack{position}"
            names[packing] = builder.add_func(_private(packing), name)
        if emission.info is not None:
            record(emission.info, tuple(names[k.func].name_hint for k in emission.kernels))
    result = builder.get()
    for gvar, func in list(result.functions.items()):
        if gvar in emitted:
            del result[gvar]
        elif isinstance(func, relax.Function) and not is_group(func):
            result.update_func(gvar, _rewrite(mod, func, emitted, names, packer))
    for name, packing in packer.functions.items():
        result[name] = packing
    return relax.transform.Normalize()(result)


def _private(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.without_attr("global_symbol")


def _rewrite(
    mod: tvm.IRModule,
    func: relax.Function,
    emitted: Mapping[ir.GlobalVar, Emission],
    names: _Names,
    packer: Packer,
) -> relax.Function:
    blocks = []
    for block in func.body.blocks:
        if isinstance(block, relax.DataflowBlock):
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.Call) and value.op in emitted:
                    group = mod[value.op]
                    bindings.extend(_calls(binding, group, emitted[value.op], names, packer))
                else:
                    bindings.append(binding)
            block = relax.DataflowBlock(bindings)
        blocks.append(block)
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _calls(
    binding: relax.VarBinding,
    group: relax.Function,
    emission: Emission,
    names: _Names,
    packer: Packer,
) -> list[relax.Binding]:
    """Rewrite one call of a group to the calls of its kernels."""
    args, span = list(binding.value.args), binding.value.span
    symbols = _symbols(group.params, args)
    has_symbols = bool(args) and isinstance(args[0].ty, relax.ShapeType)
    scalars = list(args.pop(0).values) if has_symbols else []
    exprs: dict[Slot, relax.Expr] = {}
    exprs.update({Slot("input", i): a for i, a in enumerate(args)})
    exprs.update({Slot("scalar", i): a for i, a in enumerate(scalars)})
    whole = binding.var.ty
    fields = list(whole.fields) if isinstance(whole, relax.TupleType) else [whole]
    outputs = [Slot("output", i) for i in range(len(fields))]
    types = dict(zip(outputs, fields, strict=True))
    for i, workspace in enumerate(emission.workspaces):
        types[Slot("workspace", i)] = _substituted(symbols, workspace)
    bindings: list[relax.Binding] = []
    for position, packing in emission.packing.items():
        slot = Slot("input", position)
        if isinstance(exprs[slot], ir.GenericConst):
            exprs[slot] = packer(packing, exprs[slot])
            continue
        packed = _substituted(_symbols(packing.params[:1], [exprs[slot]]), _type_of(packing))
        var = relax.DataflowVar(f"packed{position}", packed)
        operands = [names[packing], relax.Tuple([exprs[slot]])]
        call = relax.Call(_CALL_TIR, operands, None, [packed], span)
        bindings.append(relax.VarBinding(var, call))
        exprs[slot] = var
    for kernel in emission.kernels:
        written = [types[slot] for slot in kernel.writes]
        out = written[0] if len(written) == 1 else relax.TupleType(written)
        reads = relax.Tuple([exprs[slot] for slot in kernel.reads])
        call = relax.Call(_CALL_TIR, [names[kernel.func], reads], None, [out], span)
        if list(kernel.writes) == outputs:  # the usual case: the call gives what the group gave
            return [*bindings, relax.VarBinding(binding.var, call)]
        result = relax.DataflowVar("kernel", out)
        bindings.append(relax.VarBinding(result, call))
        for i, slot in enumerate(kernel.writes):
            if len(written) == 1:
                exprs[slot] = result
            else:
                exprs[slot] = relax.DataflowVar(f"{slot.kind}{slot.index}", types[slot])
                bindings.append(relax.VarBinding(exprs[slot], relax.TupleGetItem(result, i)))
    results = [exprs[slot] for slot in outputs]
    value = relax.Tuple(results) if isinstance(whole, relax.TupleType) else results[0]
    return [*bindings, relax.VarBinding(binding.var, value)]


def _symbols(params: Sequence[ir.Var], args: Sequence[relax.Expr]) -> dict[ir.Var, ir.Expr]:
    """Bind a function's symbolic variables to those of the arguments of a call."""
    known: dict[ir.Var, ir.Expr] = {}
    for param, arg in zip(params, args, strict=True):
        if isinstance(param.ty, relax.ShapeType):
            known.update(zip(param.ty.values, arg.values, strict=True))
            continue
        pairs = zip(param.ty.shape, arg.ty.shape, strict=True)
        known.update({mine: theirs for mine, theirs in pairs if isinstance(mine, ir.Var)})
    return known


def _substituted(symbols: Mapping[ir.Var, ir.Expr], type_: relax.TensorType) -> relax.TensorType:
    """Substitute the caller's symbolic variables in a type."""
    return tvm_ffi.structural_map(type_, (ir.Var, lambda v: symbols.get(v, v)), order="post")


def _type_of(packing: tirx.PrimFunc) -> relax.TensorType:
    """Return the type of a packing function's output: its last parameter."""
    buffer = packing.params[-1].ty
    return relax.TensorType(list(buffer.shape), str(buffer.dtype))
