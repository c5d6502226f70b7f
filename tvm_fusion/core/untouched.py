"""Untouched functions: external, already fused or already scheduled, which no pass changes."""

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass, PassContext, Sequential

# Another tool has decided about functions that carry one of these: matched patterns, code for an
# external library, groups that are already fused.
EXTERNAL_ATTRS = ("Composite", "Codegen")
PRIMITIVE = "Primitive"
UNTOUCHED_ATTRS = (*EXTERNAL_ATTRS, PRIMITIVE)
SCHEDULED = (
    "tirx.is_scheduled"  # TVM's own mark: DLight and MetaSchedule leave such PrimFuncs alone
)
LOWERED = "tvm_fusion.lowered"  # marks a function that is in the virtual machine's form already


def is_rewritable(func: Any) -> bool:
    """Tell whether passes may rewrite a function: a Relax function without such attributes."""
    return isinstance(func, relax.Function) and not any(_marked(func, n) for n in UNTOUCHED_ATTRS)


def is_external(func: Any) -> bool:
    """Tell whether a function is for an external code generator."""
    return any(_marked(func, n) for n in EXTERNAL_ATTRS)


def is_lowered(func: relax.Function) -> bool:
    """Tell whether :class:`tvm_fusion.transform.LowerToVM` has been through a function."""
    return _marked(func, LOWERED)


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Tell whether a PrimFunc carries TVM's mark of a finished schedule."""
    return _marked(func, SCHEDULED)


def has_blocks(func: tirx.PrimFunc) -> bool:
    """Tell whether a PrimFunc is written over SBlocks, which thread-level kernels are not."""
    return _marked(func, "s_tir")


def on_rewritable(*passes: Pass, only: str | None = None) -> Pass:
    """Make one pass that runs several over the rewritable Relax functions that are not lowered yet.

    The others are external functions of the same name and type meanwhile: calls to them stay, and
    their bodies cannot be touched.

    Parameters
    ----------
    only
        An attribute: functions without it are left alone, too.

    Returns
    -------
    Pass
        A module pass, which does not change its argument.
    """
    together = Sequential(list(passes))

    @tvm.transform.module_pass(opt_level=0, name="OnRewritable")
    def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        others = {
            gvar: func
            for gvar, func in mod.functions.items()
            if isinstance(func, relax.Function)
            and (not is_rewritable(func) or is_lowered(func) or (only and not _marked(func, only)))
        }
        before = mod
        mod = mod.clone()
        for gvar, func in others.items():
            mod.update_func(gvar, relax.ExternFunc(gvar.name_hint, func.ty))
        mod = together(mod)
        for gvar, func in others.items():
            mod.update_func(gvar, func)
            for called in relax.analysis.all_global_vars(func):
                if called not in mod.functions:  # dead to a pass that could not see the caller
                    mod.update_func(called, before[called])
        return mod

    return run


def _marked(func: tvm.ir.BaseFunc, name: str) -> bool:
    return bool(func.attrs and func.attrs.get(name, False))
