"""Kernels in the language that their target's code generator writes: CUDA C++, a CPU's assembly.

No tool is called: nvcc is replaced by nothing for a while, and LLVM is in TVM. AMD's kernels need
libraries to be linked, so that they have no text here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

from ..._tvm.versions import PIPELINE
from ...core.progress import steps
from ...errors import reason_of

LANGUAGES = {"cuda": "CUDA", "llvm": "Assembly"}  # by the target's kind
_CUDA_COMPILER = "tvm_callback_cuda_compile"


def generated(functions: Mapping[str, tirx.PrimFunc], target: Target) -> dict[str, str]:
    """Generate code of scheduled PrimFuncs, on all cores.

    Returns
    -------
    dict of str to str
        By the names of the functions; in place of what cannot be generated, the reason. Empty for
        targets that :data:`LANGUAGES` lacks.
    """
    if target.kind.name not in LANGUAGES:
        return {}

    def text(name: str) -> str:
        try:
            with target:
                return _text(tvm.IRModule({name: functions[name]}), target)
        # guard: told in its place; lowering raises anything, and the rest of the page is right
        except Exception as error:
            return f"(no code: {reason_of(error)})"

    with _no_compiler(), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        texts = pool.map(text, functions)
        return {name: next(texts) for name in steps("writing kernels' code", functions)}


def _text(mod: tvm.IRModule, target: Target) -> str:
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline(PIPELINE)
    (name,) = (gvar.name_hint for gvar in mod.functions)
    mod = tvm.IRModule({name: mod[name].with_attr("global_symbol", name)})
    bound = tirx.transform.BindTarget(target.with_host(target.host or target))(mod)
    host_mod, device_mods = split_host_device_mods(lower(bound))
    if target.kind.name == "llvm":
        return codegen_build(finalize_host()(host_mod), target).inspect_source("asm")
    return "\n".join(
        codegen_build(finalize_device()(device_mod), device).inspect_source()
        for device, device_mod in device_mods.items()
    )


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Let CUDA's code generator write source and compile none of it."""
    previous = tvm_ffi.get_global_func(_CUDA_COMPILER)
    tvm_ffi.register_global_func(_CUDA_COMPILER, lambda *_: b"none", override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_CUDA_COMPILER, previous, override=True)
