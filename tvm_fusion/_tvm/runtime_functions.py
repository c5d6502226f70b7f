"""Which packed functions TVM's runtime libraries have, asked of processes without the compiler.

A process that compiles has them all, and the compiler's own: what it finds says nothing of the
process that will load an artifact.
"""

from __future__ import annotations

import functools
import subprocess
import sys

#: Runtime libraries beside ``libtvm_runtime.so`` that an artifact may name to have them loaded.
EXTRA = "tvm_runtime_extra"
#: What bytecode of any model calls, known without asking.
COMMON = frozenset(
    f"vm.builtin.{name}"
    for name in (
        *("alloc_shape_heap", "alloc_storage", "alloc_tensor", "call_tir_dyn", "check_func_info"),
        *("check_prim_value_info", "check_shape_info", "check_tensor_info", "check_tuple_info"),
        *("copy", "ensure_zero_offset", "invoke_closure", "make_closure", "make_prim_value"),
        *("make_shape", "make_tuple", "match_prim_value", "match_shape", "null_value"),
        *("read_if_cond", "reshape", "shape_of", "tensor_to_shape", "to_device", "tuple_getitem"),
    )
)
# Functions of CUDA's library, which loads only where a driver is; modules for CUDA load it.
_CUDA = ("vm.builtin.cuda_graph.", "runtime.disco.cuda_ipc.")
# Functions that libraries with code for AMD GPUs bring along.
_ROCM = "tvm_fusion.hip_graph."

_ASK = """
import ctypes, importlib.util, pathlib, tvm_ffi
folder = pathlib.Path(importlib.util.find_spec("tvm").origin).parent / "lib"
for name in {libraries}:
    ctypes.CDLL(str(folder / f"lib{{name}}.so"), ctypes.RTLD_GLOBAL)
print(*tvm_ffi.registry.list_global_func_names(), sep="\\n")
"""
_ASK_COMPILER = "import tvm, tvm.relax\n" + _ASK.format(libraries=())


def library_of(name: str) -> str | None:
    """Tell which runtime library has a packed function.

    Returns
    -------
    str or None
        ``"tvm_runtime"``, ``"tvm_runtime_cuda"``, ``"rocm"`` (this package's, linked into what is
        made for AMD GPUs) or :data:`EXTRA`; None if no library has it.
    """
    if name.startswith(_ROCM):
        return "rocm"
    if name.startswith(_CUDA):
        return "tvm_runtime_cuda"
    if name in COMMON or name in _names("tvm_runtime"):
        return "tvm_runtime"
    return EXTRA if name in _names("tvm_runtime", EXTRA) else None


def is_compilers(name: str) -> bool:
    """Whether a packed function is TVM's own, but only of processes that can compile."""
    return library_of(name) is None and name in _compilers_names()


@functools.cache
def _names(*libraries: str) -> frozenset[str]:
    return _ask(_ASK.format(libraries=libraries))


@functools.cache
def _compilers_names() -> frozenset[str]:
    return _ask(_ASK_COMPILER)


def _ask(code: str) -> frozenset[str]:
    # -P: a script's folder on the path may have a module of one of these names.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *safe, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return frozenset(done.stdout.split())
