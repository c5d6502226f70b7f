"""The layout stage: which layout each tensor between groups has in memory.

DNNFusion's inter-block step: groups are planned in the layout of the graph; here one choice over
the whole plan lets those around convolutions read and write blocked or channels-last tensors
(:mod:`.choose`). Reshapes that are left between groups become views.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target

from .._tvm.reshape import is_reshape
from ..core.untouched import has_blocks, is_lowered, is_rewritable, on_rewritable
from ..fusion.claims import claim_book
from .apply import apply_choice
from .calls import Groups, group_calls
from .choose import choose
from .record import record_choice


@tvm.transform.module_pass(opt_level=0, name="PlanLayout")
class PlanLayout:
    """Choose layouts of tensors between groups, and turn reshapes into views.

    Inputs and outputs of functions keep their layout. Where no template profits from another one,
    nothing but views changes. Runs under the target that kernels are for.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        target = Target.current(allow_none=True)
        if target is not None:
            mod = choose_layouts(mod, target)
        return Sequential([ReshapesToViews()])(mod)


def choose_layouts(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Choose layouts of tensors between groups, and let groups read and write them.

    Parameters
    ----------
    mod : tvm.IRModule
        Planned: its functions call groups.

    Returns
    -------
    tvm.IRModule
        The same object where nothing changes.
    """
    groups = Groups(mod)
    book = claim_book(target)
    builder = relax.BlockBuilder(mod.clone())
    rewritten: dict[tvm.ir.GlobalVar, relax.Function] = {}
    for gvar, func in mod.functions.items():
        if not is_rewritable(func) or is_lowered(func):
            continue
        blocks = list(func.body.blocks)
        changed = False
        for k, block in enumerate(blocks):
            if isinstance(block, relax.DataflowBlock):
                calls = group_calls(block, groups)
                choice = choose(calls, book)
                if choice is not None:
                    record_choice(choice)
                    blocks[k] = apply_choice(builder, mod, block, calls, choice, book)
                    changed = True
        if changed:
            body = relax.SeqExpr(blocks, func.body.body)
            rewritten[gvar] = relax.Function(
                func.params, body, func.ret_ty, func.is_pure, func.attrs
            )
    if not rewritten:
        return mod
    result = builder.get()
    for gvar, func in rewritten.items():
        result.update_func(gvar, func)
    called = {g for func in rewritten.values() for g in relax.analysis.all_global_vars(func)}
    before = {g for gvar in rewritten for g in relax.analysis.all_global_vars(mod[gvar])}
    kept = {
        g
        for gvar, func in result.functions.items()
        if isinstance(func, relax.Function)
        for g in relax.analysis.all_global_vars(func)
    }
    for gvar in before - called - kept:
        del result[gvar]
    return relax.transform.Normalize()(result)


# Replace reshapes between kernels by views of one buffer, which need no kernel.
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
