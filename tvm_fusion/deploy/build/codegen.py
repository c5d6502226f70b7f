"""Kernels lowered and compiled to machine code on all cores.

TVM builds all kernels of a module one after the other, as one LLVM module and one CUDA source. Here
they are split into parts, which threads take one by one: passes and code generators in C++ let go
of Python's lock, and nvcc is a process of its own. Host code of the parts is linked as object
files, device code is imported part by part, and the virtual machine finds all of it by name.

    parts = PrimFuncs, dealt out in turn
    for part on all cores:  lower -> split host and device -> device code, host object
    executable = bytecode + empty host module importing the device code;  link with the objects
"""

import contextvars
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.relax import vm_build
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

from ..._tvm.ir.pass_context import copied
from ..._tvm.ir.structural import structural_walk
from ...core.progress import steps
from ...lower.cleanup import with_checked
from ..count.device import SplitFunctions
from ..memory.weights import WEIGHTS

# Parts for each core: kernels take unequal time. A part of CUDA's is a run of nvcc, whose start
# takes as long as several kernels. One code object of AMD's is what its tools expect to find.
_PARTS = {"llvm": 4, "cuda": 1}
_FEWEST = {"llvm": 1, "cuda": 6}  # kernels of a part
_STAGE = "generating machine code"

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
    objects
        Object files of the host's kernels, to be linked with it.
    hosts
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
    """Compile a module that is lowered for the virtual machine, while the body runs of ``with``.

    Parameters
    ----------
    mod
        Relax functions in the virtual machine's form, and PrimFuncs.
    tir_pipeline
        Name of the registered pipeline that lowers PrimFuncs.
    loaders
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

    def compile_part(part: _Functions, for_target: Target) -> _Part:
        return _compile(tvm.IRModule(part, attrs=rest.attrs), for_target, tir_pipeline)

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

    parts = [(part, own) for own, each in _by_target(kernels, target) for part in _parts(each, own)]
    if len(parts) == 1:
        yield lambda: link(compile_part(*part) for part in steps(_STAGE, parts))
        return
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(_as_here(own, compile_part), part, own) for part, own in parts]
        try:
            yield lambda: link(future.result() for future in steps(_STAGE, futures))
        finally:
            pool.shutdown(cancel_futures=True)


def _by_target(kernels: _Functions, target: Target) -> list[tuple[Target, _Functions]]:
    """Sort a CPU's kernels by the targets that they name: an LLVM module has one."""
    if target.kind.name != "llvm":
        return [(target, kernels)]
    found: dict[str, tuple[Target, _Functions]] = {}
    for gvar, func in kernels.items():
        own = (func.attrs or {}).get("target", target)
        _, same = found.setdefault(str(own), (own, {}))
        same[gvar] = func.without_attr("target") if own is not target else func
    return list(found.values()) or [(target, kernels)]


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


def _as_here(target: Target, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a thread run under a target, and the pass context and recording of this one."""
    now = PassContext.current()
    variables = contextvars.copy_context()

    def run(*args: Any) -> Any:
        with target, copied(now):
            return function(*args)

    return lambda *args: variables.copy().run(run, *args)


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


# Which arguments of kernels need no check: tensors that the virtual machine or the loader makes.
#
#     main(x, weight):                              x comes from a caller
#         a = vm.alloc_tensor(...)
#         conv(x, weight, a)                        conv checks x, not weight and a
#         b = vm.alloc_tensor(...)
#         relu(a, b)                                relu checks nothing
#
# The loader gives weights the shape, type and device of the manifest, in contiguous memory
# (:mod:`..runtime.artifact.weights_file`, :mod:`..runtime.tensors`). Destinations of results are
# their caller's, like inputs.
_ALLOC = ir.Op.get("relax.vm.alloc_tensor")
_CALL_DYNAMIC = ir.Op.get("relax.vm.call_tir_dyn")
_RESHAPE = "vm.builtin.reshape"


def mark_checked_arguments(
    mod: IRModule,
    kernels: Mapping[ir.GlobalVar, tirx.PrimFunc],
    loaders: Collection[str] = (),
) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    """Mark parameters of kernels that no call passes a caller's tensor for.

    Parameters
    ----------
    mod
        Lowered for the virtual machine.
    kernels
        Its PrimFuncs, by the variables that calls name.
    loaders
        Names of those that the loader calls, with weights that it has checked.

    Returns
    -------
    dict of GlobalVar to PrimFunc
        With marks; one that nothing in the module calls has none.
    """
    names = {gvar.name_hint for gvar in kernels}
    checked = {
        g.name_hint: set(range(len(f.params))) for g, f in kernels.items() if g.name_hint in loaders
    }
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            origins = _Origins(func)
            for name, args in _kernel_calls(func, names):
                own = {k for k, arg in enumerate(args) if origins.is_own(arg)}
                checked[name] = checked.get(name, own) & own
    return {g: with_checked(f, checked.get(g.name_hint, ())) for g, f in kernels.items()}


def _kernel_calls(func: relax.Function, names: set[str]) -> list[tuple[str, Sequence[ir.Expr]]]:
    """List kernels and arguments of all calls; another use of a kernel is one without arguments."""
    found: list[tuple[str, Sequence[ir.Expr]]] = []

    def visit(expr: ir.Expr) -> None:
        if not isinstance(expr, ir.Call):
            return
        if isinstance(expr.op, ir.GlobalVar) and expr.op.name_hint in names:
            found.append((expr.op.name_hint, list(expr.args)))
            others = expr.args
        elif expr.op == _CALL_DYNAMIC and isinstance(expr.args[1], relax.Tuple):
            found.append((expr.args[0].name_hint, list(expr.args[1].fields)))
            others = []
        else:
            others = expr.args
        found.extend((arg.name_hint, ()) for arg in others if isinstance(arg, ir.GlobalVar))

    relax.analysis.post_order_visit(func, visit)
    return found


class _Origins:
    """Where the tensors of one function come from."""

    def __init__(self, func: relax.Function) -> None:
        first, count = (int(k) for k in (func.attrs or {}).get(WEIGHTS, (0, 0)))
        self._weights = frozenset(map(hash, func.params[first : first + count]))
        self._values = relax.analysis.get_var2val(func)
        self._known: dict[int, bool] = {}

    def is_own(self, expr: ir.Expr) -> bool:
        """Whether a tensor is a weight, a constant or allocated by the virtual machine."""
        if not isinstance(expr, ir.Var):
            return self._is_own(expr)
        key = hash(expr)
        if key not in self._known:
            value = self._values.get(expr)
            is_weight = key in self._weights
            self._known[key] = is_weight or (value is not None and self._is_own(value))
        return self._known[key]

    def _is_own(self, expr: ir.Expr) -> bool:
        if isinstance(expr, ir.Var):
            return self.is_own(expr)
        if isinstance(expr, ir.GenericConst):
            return isinstance(expr.ty, relax.TensorType)
        if not isinstance(expr, ir.Call):
            return False
        if isinstance(expr.op, relax.ExternFunc) and expr.op.global_symbol == _RESHAPE:
            return self.is_own(expr.args[0])
        return expr.op == _ALLOC
