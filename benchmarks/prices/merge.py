"""Many lowered modules as one, so that the device compiler is started once for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx


def merged(mods: Mapping[str, tvm.IRModule]) -> tvm.IRModule:
    """Put modules side by side.

    Parameters
    ----------
    mods
        Lowered for the virtual machine, each with a function ``main``.

    Returns
    -------
    tvm.IRModule
        Each ``main`` carries its key as name, every other function the key as a prefix. Equal
        kernels are there once, under the first one's name.
    """
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
    kernels: dict[int, list[tuple[ir.BaseFunc, ir.GlobalVar]]] = {}
    for key, mod in mods.items():
        renamed = {
            gvar.name_hint: ir.GlobalVar(
                key if gvar.name_hint == "main" else f"{key}_{gvar.name_hint}"
            )
            for gvar in mod.functions
        }

        for gvar, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc):
                bare = func.without_attr("global_symbol")
                alike = kernels.setdefault(tvm_ffi.structural_hash(bare), [])
                known = [name for one, name in alike if tvm_ffi.structural_equal(one, bare)]
                if known:
                    renamed[gvar.name_hint] = known[0]
                else:
                    alike.append((bare, renamed[gvar.name_hint]))

        def rename(gvar: ir.GlobalVar, renamed: dict[str, Any] = renamed) -> ir.GlobalVar:
            return renamed[gvar.name_hint]

        for gvar, func in mod.functions.items():
            if renamed[gvar.name_hint] in functions:
                continue
            func = tvm_ffi.structural_map(func, (ir.GlobalVar, rename), order="post")
            if func.attrs and "global_symbol" in func.attrs:
                func = func.with_attr("global_symbol", renamed[gvar.name_hint].name_hint)
            functions[renamed[gvar.name_hint]] = func
    return tvm.IRModule(functions)
