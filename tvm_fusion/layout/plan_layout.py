"""The layout stage: which layout each tensor between groups has in memory.

DNNFusion's inter-block step: groups are planned in the layout of the graph; here one choice over
the whole plan lets those around convolutions read and write blocked or channels-last tensors
(:mod:`.choose`). Reshapes that are left between groups become views (:mod:`.views`).
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target

from ..core.untouched import is_lowered, is_rewritable
from ..fusion.claims import claim_book
from .apply import apply_choice
from .calls import Groups, group_calls
from .choose import choose
from .record import record_choice
from .views import ReshapesToViews


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
    target : Target
        What kernels are for.

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
