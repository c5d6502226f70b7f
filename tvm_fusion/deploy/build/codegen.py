"""Kernels lowered and compiled to machine code on all cores.

TVM builds all kernels of a module one after the other, as one LLVM module and one CUDA source. Here
they are split into parts, which threads take one by one: passes and code generators in C++ let go
of Python's lock, and nvcc is a process of its own. Host code of the parts is linked as object
files, device code is imported part by part, and the virtual machine finds all of it by name.

    parts = PrimFuncs, dealt out in turn
    for part on all cores:  lower -> split host and device -> device code, host object
    executable = bytecode + empty host module importing the device code;  link with the objects
"""

from __future__ import annotations

import contextvars
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.relax import vm_build
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

from ..._tvm.pass_context import copied
from ..._tvm.structural import structural_walk
from .checked_arguments import mark_checked_arguments
from ..count.device import SplitFunctions

# Parts for each core: kernels take unequal time. A part of CUDA's is a run of nvcc, whose start
# takes as long as several kernels. One code object of AMD's is what its tools expect to find.
_PARTS = {"llvm": 4, "cuda": 1}
_FEWEST = {"llvm": 1, "cuda": 6}  # kernels of a part

_Functions = dict[ir.GlobalVar, tirx.PrimFunc]
# The host's object file, modules of devices, and host code (see Compiled).
_Part = tuple[bytes, list[Any], dict[str, list[tirx.PrimFunc]]]


@dataclass(frozen=True)
class Compiled:
    """Machine code of a module.

    Attributes
    ----------
    executable : tvm.runtime.Executable
        Bytecode; its module imports the code of devices.
    objects : tuple of bytes
        Object files of the host's kernels, to be linked with it.
    hosts : dict of str to list of PrimFunc
        Host code of a GPU's kernels as SplitHostDevice left it, by the names of PrimFuncs; none
        where the caller's context has instruments.
    """

    executable: Any
    objects: tuple[bytes, ...]
    hosts: dict[str, list[tirx.PrimFunc]]


@contextmanager
def compiling(
    mod: tvm.IRModule, target: Target, tir_pipeline: str, loaders: Collection[str] = ()
) -> Iterator[Callable[[], Compiled]]:
    """Compile a module that is lowered for the virtual machine, beside the body of ``with``.

    Parameters
    ----------
    mod : tvm.IRModule
        Relax functions in the virtual machine's form, and PrimFuncs.
    tir_pipeline : str
        Name of the registered pipeline that lowers PrimFuncs.
    loaders : collection of str
        Names of PrimFuncs that the loader calls, with weights that it has checked.

    Yields
    ------
    callable
        Waits for the machine code and returns it as :class:`Compiled`.
    """
    builder = relax.ExecBuilder()
    attrs = dict(mod.attrs) if mod.attrs else {}
    rest = vm_build._vmcodegen(builder, mod, "bytecode")
    kernels = {g: f for g, f in rest.functions.items() if isinstance(f, tirx.PrimFunc)}
    if target.kind.name == "llvm":
        kernels = mark_checked_arguments(mod, kernels, loaders)

    def compile_part(part: _Functions) -> _Part:
        return _compile(tvm.IRModule(part, attrs=rest.attrs), target, tir_pipeline)

    def link(parts: Iterable[_Part]) -> Compiled:
        library = codegen_build(tvm.IRModule({}, attrs=rest.attrs), target.host or target)
        objects: list[bytes] = []
        hosts: dict[str, list[tirx.PrimFunc]] = {}
        for code, devices, functions in parts:
            objects.append(code)
            hosts |= functions
            for device in devices:
                library.import_module(device)
        external = list(attrs.get("external_mods", []))
        for module in filter(vm_build._is_device_module, external):
            library.import_module(module)
        others = [module for module in external if not vm_build._is_device_module(module)]
        constants = dict(attrs.get("const_name_to_constant", {}))
        linked = vm_build._ffi_api.VMLink(builder, target, library, others, constants)
        return Compiled(relax.VMExecutable(linked), tuple(objects), hosts)

    parts = _parts(kernels, target)
    if len(parts) == 1:
        yield lambda: link(map(compile_part, parts))
        return
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(_as_here(target, compile_part), part) for part in parts]
        try:
            yield lambda: link(future.result() for future in futures)
        finally:
            pool.shutdown(cancel_futures=True)


def _parts(kernels: _Functions, target: Target) -> list[_Functions]:
    """Deal kernels out to parts; those that call others stay together with all."""
    kind = target.kind.name
    most = len(os.sched_getaffinity(0)) * _PARTS.get(kind, 0)
    count = max(1, min(most, len(kernels) // _FEWEST.get(kind, 1)))
    if PassContext.current().instruments or any(map(_calls_another, kernels.values())):
        count = 1  # an instrument sees the passes of one thread
    items = list(kernels.items())
    return [dict(items[start::count]) for start in range(count)]


def _calls_another(func: tirx.PrimFunc) -> bool:
    found: list[ir.GlobalVar] = []
    structural_walk(func.body, (ir.GlobalVar, found.append))
    return bool(found)


def _as_here(target: Target, function: Callable[[_Functions], Any]) -> Callable[..., Any]:
    """Let a thread run under the target, pass context and recording of this one."""
    now = PassContext.current()
    variables = contextvars.copy_context()

    def run(part: _Functions) -> Any:
        with target, copied(now):
            return function(part)

    return lambda part: variables.copy().run(run, part)


def _compile(mod: tvm.IRModule, target: Target, tir_pipeline: str) -> _Part:
    """Compile one part as ``tvm.tirx.build`` does."""
    host = target.host or target
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline(tir_pipeline)
    bound = tirx.transform.BindTarget(target.with_host(host))(mod)
    split, now = SplitFunctions(), PassContext.current()
    with nullcontext() if now.instruments else copied(now, instruments=[split]):
        lowered = lower(bound)
    host_mod, device_mods = split_host_device_mods(lowered)
    devices = [
        codegen_build(finalize_device()(device_mod), device)
        for device, device_mod in device_mods.items()
        if device_mod.functions
    ]
    names = {gvar.name_hint for gvar in mod.functions} if device_mods else set()
    hosts = {name: split.functions[name] for name in names & split.functions.keys()}
    host_module = codegen_build(finalize_host()(host_mod), host)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.o")
        host_module.write_to_file(str(path))
        return path.read_bytes(), devices, hosts
