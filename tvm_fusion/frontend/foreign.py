"""Which functions of a module are ours to change."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

# Somebody else has decided about functions that carry one of these: matched patterns, code for an
# external library, groups that are already fused.
FOREIGN_ATTRS = ("Composite", "Codegen", "Primitive")


def is_ours(func: Any) -> bool:
    """Tell whether passes may rewrite a function: a Relax function without foreign attributes."""
    if not isinstance(func, relax.Function):
        return False
    attrs = func.attrs or {}
    return not any(name in attrs and attrs[name] for name in FOREIGN_ATTRS)


def keep_foreign(inner: tvm.transform.Pass) -> tvm.transform.Pass:
    """Wrap a pass so that functions which are not ours come out as they went in."""

    @tvm.transform.module_pass(opt_level=0, name=f"KeepForeign({inner.info.name})")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = inner(mod)
        kept = {gvar: func for gvar, func in mod.functions.items() if not is_ours(func)}
        changed = {g: f for g, f in kept.items() if not result[g.name_hint].same_as(f)}
        if changed:
            result = result.clone()
            for gvar, func in changed.items():
                result.update_func(result.get_global_var(gvar.name_hint), func)
        return result

    return run
