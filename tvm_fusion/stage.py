"""What all stages share: they are TVM passes, and what is not ours comes out as it went in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.ir.transform import Pass, Sequential

from .frontend.foreign import is_ours

LOWERED = "tvm_fusion.lowered"  # marks a function that is in the virtual machine's form already


def on_ours(passes: Sequence[Pass]) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Run passes over a module while Relax functions that are not ours stand by.

    A function with a Composite, Codegen or Primitive attribute, or one that is lowered already, is
    an external function of the same name and type while the passes run: calls to it stay, and its
    body cannot be touched.

    Parameters
    ----------
    passes : sequence of Pass
        Applied in order.

    Returns
    -------
    callable
        ``IRModule -> IRModule``; the argument is not changed.
    """

    def run(mod: tvm.IRModule) -> tvm.IRModule:
        foreign = {
            gvar: func
            for gvar, func in mod.functions.items()
            if isinstance(func, relax.Function) and (not is_ours(func) or is_lowered(func))
        }
        mod = mod.clone()
        for gvar, func in foreign.items():
            mod.update_func(gvar, relax.ExternFunc(gvar.name_hint, func.ty))
        mod = Sequential(list(passes))(mod)
        for gvar, func in foreign.items():
            mod.update_func(gvar, func)
        return mod

    return run


def is_lowered(func: relax.Function) -> bool:
    """Whether a Relax function has been lowered to the virtual machine's form by these passes."""
    return bool(func.attrs and func.attrs.get(LOWERED, False))
