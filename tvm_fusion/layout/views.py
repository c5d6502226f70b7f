"""Replace reshapes between kernels by views of one buffer, which need no kernel."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext

from .._tvm.reshape import is_reshape
from ..core.untouched import has_blocks, on_rewritable


@tvm.transform.module_pass(opt_level=0, name="ReshapesToViews")
class ReshapesToViews:
    """Turn reshapes between kernels into views, those that make a function's output included.

    TVM recognises a reshape by its PrimFunc, so this runs before kernels are scheduled. Left to
    itself it copies where a reshape is bound to an output variable.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        return on_rewritable(
            _AliasOutputs(),
            _RewriteReshapes(),
            relax.transform.DeadCodeElimination(),
        )(mod)


@tvm.transform.module_pass(opt_level=0, name="AliasOutputs")
class _AliasOutputs:
    """``output = reshape(x)`` becomes ``y = reshape(x); output = y``, which TVM sees as a view."""

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if isinstance(func, relax.Function):
                mod.update_func(gvar, _alias_outputs(mod, func))
        return relax.transform.Normalize()(mod)


@tvm.transform.module_pass(opt_level=0, name="RewriteReshapes")
class _RewriteReshapes:
    """Run TVM's RewriteDataflowReshape, whose analysis dies of PrimFuncs that it cannot read.

    Functions that are no reshape are shown to it without a body: it looks at none that uses no
    argument. Those without SBlocks end in an internal error otherwise (TVM 0.27).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        hidden = {
            gvar: func
            for gvar, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc) and not (has_blocks(func) and is_reshape(func))
        }
        shown = mod.clone()
        for gvar, func in hidden.items():
            shown.update_func(gvar, func.with_body(tirx.Evaluate(0)))
        rewritten = relax.transform.RewriteDataflowReshape()(shown)
        for gvar, func in hidden.items():
            rewritten.update_func(gvar, func)
        return rewritten


def _alias_outputs(mod: tvm.IRModule, func: relax.Function) -> relax.Function:
    blocks = []
    for block in func.body.blocks:
        if isinstance(block, relax.DataflowBlock):
            bindings = [new for old in block.bindings for new in _alias(mod, old)]
            block = relax.DataflowBlock(bindings)
        blocks.append(block)
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _alias(mod: tvm.IRModule, binding: relax.Binding) -> list[relax.Binding]:
    if isinstance(binding.var, relax.DataflowVar) or not _is_reshape(mod, binding.value):
        return [binding]
    inner = relax.DataflowVar(binding.var.name, binding.var.ty)
    return [relax.VarBinding(inner, binding.value), relax.VarBinding(binding.var, inner)]


def _is_reshape(mod: tvm.IRModule, value: relax.Expr) -> bool:
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return False
    kernel = mod[value.args[0]]
    # TVM's test dies of a thread-level kernel, which has no SBlocks.
    return has_blocks(kernel) and is_reshape(kernel)
