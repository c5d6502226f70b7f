"""Packed functions that a module calls, and who has them when it is loaded without the compiler.

An artifact's bytecode and kernels call functions by global names. Those of TVM's runtime library
are always there; those of its extra library are there if the loader loads it, so the manifest names
it; the compiler's own, such as Python functions over numpy, are not there at all. What is left are
functions of the application, which registers them before it loads the artifact.
"""

import functools
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm import ir, relax, tirx

from ...core.tir.loops import find
from ...errors import UserError
from ..count.nests import packed_name

# Which packed functions TVM's runtime libraries have, asked of processes without the compiler.
#
# A process that compiles has them all, and the compiler's own: what it finds says nothing of the
# process that will load an artifact.


#: Runtime libraries besides ``libtvm_runtime.so`` that an artifact may name to have them loaded.
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


@dataclass(frozen=True)
class PackedFunctions:
    """What a process has to have before it loads an artifact."""

    libraries: list[str]  # TVM's runtime libraries besides the main one
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
