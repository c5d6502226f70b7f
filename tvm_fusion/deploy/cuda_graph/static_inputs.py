"""Inputs that stay where they are: CUDA graphs read them in place.

TVM takes a function's parameters behind its first ``num_input`` for such tensors, and never looks
at their addresses again. Here the addresses are part of what a captured graph is known by: if one
has changed, the launches are captured anew.
"""

import functools
from collections.abc import Collection, Mapping, Sequence

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import Pass, PassContext
from tvm.script import tirx as T

from ...errors import UserError
from ...signature import Signature

STATIC_INPUTS = "tvm_fusion.static_inputs"  # attribute of a function: their positions, ascending
DATA_WORD, BYTE_OFFSET_WORD = 0, 5  # of a DLTensor, in words of 8 bytes
_RUN = "vm.builtin.cuda_graph.run_or_capture"
_WITH_CONTEXT = ir.Op.get("relax.call_builtin_with_ctx")


def mark_static_inputs(
    mod: tvm.IRModule, signatures: Mapping[str, Signature], names: Collection[str]
) -> tvm.IRModule:
    """Write on functions which of their inputs stay in place.

    Parameters
    ----------
    mod
        The functions that ``signatures`` describes.
    names
        Inputs; a function need not have all of them.

    Raises
    ------
    UserError
        For a name that no function knows.
    """
    check_inputs(signatures, names)
    mod = mod.clone()
    for function, signature in signatures.items():
        positions = [i for i, spec in enumerate(signature.inputs) if spec.name in names]
        if positions:
            gvar = mod.get_global_var(function)
            mod.update_func(gvar, mod[gvar].with_attr(STATIC_INPUTS, positions))
    return mod


def check_inputs(signatures: Mapping[str, Signature], names: Collection[str]) -> None:
    """Check that some function has each input.

    Raises
    ------
    UserError
        For a name that no function knows.
    """
    known = [spec.name for signature in signatures.values() for spec in signature.inputs]
    for name in names:
        if name not in known:
            raise UserError(f"there is no input {name!r}", f"some of {', '.join(known)}")


def static_inputs(func: relax.Function) -> list[int]:
    """Return the positions of a function's inputs that stay in place."""
    return [int(i) for i in (func.attrs or {}).get(STATIC_INPUTS, ())]


def with_static_inputs(rewrite: Pass) -> Pass:
    """Make a pass that captures with static inputs among a function's weights.

    Returns
    -------
    Pass
        A module pass; the order of parameters is what it was.
    """

    @tvm.transform.module_pass(opt_level=0, name="CaptureStaticInputs")
    def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        mod = mod.clone()
        chosen = {
            gvar: func
            for gvar, func in mod.functions.items()
            if isinstance(func, relax.Function) and static_inputs(func)
        }
        for gvar, func in chosen.items():
            positions = static_inputs(func)
            count = int(func.attrs.get("num_input", len(func.params)))
            moving = [p for i, p in enumerate(func.params[:count]) if i not in positions]
            fixed = [func.params[i] for i in positions]
            params = [*moving, *fixed, *func.params[count:]]
            mod.update_func(gvar, _with_params(func, params).with_attr("num_input", len(moving)))
        mod = rewrite(mod)
        if not chosen:
            return mod
        builder = relax.BlockBuilder(mod)
        address = builder.add_func(_address(), "address")
        mod = builder.get()
        for gvar, before in chosen.items():
            func = _with_params(mod[gvar], before.params)
            fixed = [func.params[i] for i in static_inputs(before)]
            mod.update_func(gvar, _keyed(func, address, fixed).with_attrs(before.attrs))
        return mod

    return run


def _with_params(func: relax.Function, params: Sequence[ir.Var]) -> relax.Function:
    return relax.Function(params, func.body, func.ret_ty, func.is_pure, func.attrs)


def _keyed(func: relax.Function, address: ir.GlobalVar, fixed: Sequence[ir.Var]) -> relax.Function:
    """Make addresses part of what the graphs of a function are looked up by."""
    blocks = []
    for block in func.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, ir.Call) and value.op == _WITH_CONTEXT and _runs(value):
                key = [ir.Var(f"address_{p.name}", ir.PrimType("int64")) for p in fixed]
                for var, param in zip(key, fixed, strict=True):
                    bindings.append(relax.VarBinding(var, ir.Call(address, [param])))
                fields = [*value.args[1].fields, relax.ShapeExpr(key)]
                args = [value.args[0], relax.Tuple(fields)]
                value = ir.Call(value.op, args, value.attrs, value.ty_args)
                binding = relax.VarBinding(binding.var, value)
            bindings.append(binding)
        blocks.append(relax.BindingBlock(bindings))
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _runs(call: ir.Call) -> bool:
    return isinstance(call.args[0], relax.ExternFunc) and call.args[0].global_symbol == _RUN


@functools.cache
def _address() -> tirx.PrimFunc:
    """Tell where a tensor's elements lie: the sum of two fields of its DLTensor.

    Parsed when it is needed: TVMScript takes a tenth of a second for the first function.
    """

    @T.prim_func(private=True, s_tir=True)
    def address(tensor: T.handle) -> T.int64:
        T.func_attr({"tirx.is_host_func": True, "tirx.is_scheduled": True})
        start: T.let[T.handle("int64")] = T.tvm_struct_get(tensor, 0, 0, T.handle("int64").ty)
        words = T.decl_buffer(6, "int64", data=start)
        return words[DATA_WORD] + words[BYTE_OFFSET_WORD]

    return address
