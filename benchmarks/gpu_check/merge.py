"""Many lowered modules as one, so that the device compiler is started once for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir


def merged(mods: Mapping[str, tvm.IRModule]) -> tvm.IRModule:
    """Put modules side by side.

    Parameters
    ----------
    mods : mapping of str to tvm.IRModule
        Lowered for the virtual machine, each with a function ``main``.

    Returns
    -------
    tvm.IRModule
        Each ``main`` carries its key as name, every other function the key as a prefix.
    """
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
    for key, mod in mods.items():
        renamed = {
            gvar.name_hint: ir.GlobalVar(
                key if gvar.name_hint == "main" else f"{key}_{gvar.name_hint}"
            )
            for gvar in mod.functions
        }

        def rename(gvar: ir.GlobalVar, renamed: dict[str, Any] = renamed) -> ir.GlobalVar:
            return renamed[gvar.name_hint]

        for gvar, func in mod.functions.items():
            func = tvm_ffi.structural_map(func, (ir.GlobalVar, rename), order="post")
            if func.attrs and "global_symbol" in func.attrs:
                func = func.with_attr("global_symbol", renamed[gvar.name_hint].name_hint)
            functions[renamed[gvar.name_hint]] = func
    return tvm.IRModule(functions)
