"""Packed functions that a module calls, and who has them when it is loaded without the compiler.

An artifact's bytecode and kernels call functions by global names. Those of TVM's runtime library
are always there; those of its extra library are there if the loader loads it, so the manifest names
it; the compiler's own, such as Python functions over numpy, are not there at all. What is left are
functions of the application, which registers them before it loads the artifact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm import ir, relax, tirx

from ..._tvm.runtime_functions import EXTRA, is_compilers, library_of
from ...core.tir.loops import find
from ...errors import UserError
from ..count.nests import packed_name


@dataclass(frozen=True)
class PackedFunctions:
    """What a process has to have before it loads an artifact."""

    libraries: list[str]  # TVM's runtime libraries beside the main one
    application: list[str]  # names of the application's own functions


def packed_functions(mods: Iterable[tvm.IRModule]) -> PackedFunctions:
    """Find out who has the packed functions that lowered modules call.

    Parameters
    ----------
    mods
        In the virtual machine's form, with PrimFuncs.

    Raises
    ------
    UserError
        If some are the compiler's alone.
    """
    names = sorted({name for mod in mods for name in _called(mod)})
    owners = {name: library_of(name) for name in names}
    missing = [name for name, owner in owners.items() if owner is None]
    compilers = [name for name in missing if _is_here(name) and is_compilers(name)]
    if compilers:
        plural = "s" if len(compilers) > 1 else ""
        raise UserError(
            f"the model calls TVM's function{plural} {', '.join(compilers)}, which only a process "
            "with the compiler has",
            "functions of TVM's runtime libraries, or of the application",
            "write it in operators, or as a PrimFunc",
        )
    return PackedFunctions([EXTRA] * (EXTRA in owners.values()), missing)


def _called(mod: tvm.IRModule) -> set[str]:
    names: set[str] = set()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            names |= {str(called.global_symbol) for called in find(func.body, relax.ExternFunc)}
        elif isinstance(func, tirx.PrimFunc) and find(func.body, ir.StringImm):
            names |= {n for call in find(func.body, ir.Call) if (n := _by_registry(call))}
    return names


def _by_registry(call: ir.Call) -> str | None:
    """Name the function that a kernel looks up; those that are linked are no such."""
    name = packed_name(call)
    return name if name is not None and "packed" in str(call.op.name) else None


def _is_here(name: str) -> bool:
    return tvm.get_global_func(name, allow_missing=True) is not None
