"""One module of a model that was scheduled for several architectures.

Each architecture keeps Relax functions of its own, with ``@`` and its name behind theirs. A kernel
that came out equal for several is kept once, for a target that names them all; one that differs has
its first architecture's name behind its own. The loader calls the functions of the device that is
there, and machine code of others is never loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...device import TargetSpec

_HOST = "tirx.is_host_func"


@dataclass(frozen=True)
class Merged:
    """Modules that became one.

    Attributes
    ----------
    mod : tvm.IRModule
        Every kernel with its target.
    names : dict of str to dict of str to str
        By architecture, the new name of each function by its old one.
    kernels : dict of tuple of str to list of str
        By architectures, the kernels that are kept for exactly these.
    """

    mod: tvm.IRModule
    names: dict[str, dict[str, str]]
    kernels: dict[tuple[str, ...], list[str]]


@dataclass
class _Kernel:
    """One kernel and the variables that stand for it, by architecture."""

    func: tirx.PrimFunc
    variables: dict[str, ir.GlobalVar] = field(default_factory=dict)


def suffix(arch: str) -> str:
    """Return what stands behind the names of an architecture's functions."""
    return f"@{arch}"


def merge(mods: Mapping[str, tvm.IRModule], spec: TargetSpec) -> Merged:
    """Merge the modules of several architectures.

    Parameters
    ----------
    mods : mapping of str to tvm.IRModule
        By architecture, the same functions lowered for the virtual machine.

    Returns
    -------
    Merged
    """
    found = _kernels(mods, may_share=spec.kind != "rocm")
    taken: set[str] = set()
    renamed: dict[str, dict[ir.GlobalVar, ir.GlobalVar]] = {arch: {} for arch in mods}
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
    by_archs: dict[tuple[str, ...], list[str]] = {}
    for kernel in found:
        archs = tuple(kernel.variables)
        first = next(iter(kernel.variables.values()))
        name = first.name_hint if archs == spec.archs else f"{first.name_hint}_{archs[0]}"
        while name in taken:
            name += "_"
        taken.add(name)
        func = kernel.func.with_attr("global_symbol", name)
        if _HOST not in kernel.func.attrs:
            func = func.with_attr("target", spec.of(archs).tvm_target())
            by_archs.setdefault(archs, []).append(name)
        new = _named(first, name)
        functions[new] = func
        for arch, old in kernel.variables.items():
            renamed[arch][old] = new
    for arch, mod in mods.items():
        others = [g for g, f in mod.functions.items() if not isinstance(f, tirx.PrimFunc)]
        new_names = {old: _named(old, old.name_hint + suffix(arch)) for old in others}
        renamed[arch].update(new_names)
        for old, new in new_names.items():
            functions[new] = _calling(mod[old], renamed[arch], new.name_hint)
    first_mod = next(iter(mods.values()))
    merged = tvm.IRModule(functions, attrs=first_mod.attrs, global_infos=first_mod.global_infos)
    names = {
        a: {o.name_hint: n.name_hint for o, n in pairs.items()} for a, pairs in renamed.items()
    }
    return Merged(merged, names, by_archs)


def _kernels(mods: Mapping[str, tvm.IRModule], may_share: bool) -> list[_Kernel]:
    """List the kernels of all modules, equal ones of several once.

    AMD's code objects are for one architecture each, so nothing would be shared.
    """
    found: list[_Kernel] = []
    alike: dict[int, list[_Kernel]] = {}
    for arch, mod in mods.items():
        for gvar, func in mod.functions.items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            bare = func.without_attr("global_symbol")
            same = alike.setdefault(tvm_ffi.structural_hash(bare), [])
            for kernel in same if may_share or _HOST in func.attrs else ():
                if arch not in kernel.variables and tvm_ffi.structural_equal(kernel.func, bare):
                    break
            else:
                kernel = _Kernel(bare)
                same.append(kernel)
                found.append(kernel)
            kernel.variables[arch] = gvar
    return found


def _named(old: ir.GlobalVar, name: str) -> ir.GlobalVar:
    """Make a variable of the same type."""
    new = ir.GlobalVar(name)
    relax.expr._update_type(new, old.ty)
    return new


def _calling(
    func: ir.BaseFunc, renamed: Mapping[ir.GlobalVar, ir.GlobalVar], name: str
) -> ir.BaseFunc:
    """Write a function over the new variables, with a symbol of its own."""
    func = tvm_ffi.structural_map(func, (ir.GlobalVar, lambda g: renamed.get(g, g)), order="post")
    has_symbol = bool(func.attrs) and "global_symbol" in func.attrs
    return func.with_attr("global_symbol", name) if has_symbol else func
