"""Which PrimFuncs the groups of a planned model became, and their text."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

from ..._tvm.versions import PIPELINE
from ...core.progress import steps
from ...errors import reason_of
from ..planned import PlannedModel

# Kernels in the language that their target's code generator writes: CUDA C++, a CPU's assembly.
#
# No tool is called: nvcc is replaced by nothing for a while, and LLVM is in TVM. AMD's kernels need
# libraries to be linked, so that they have no text here.


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


_LAYOUT = re.compile(r"_[A-Z]+(\d+[a-z])*$")  # what the layout stage adds to a variable's name
_LARGEST = 200_000  # characters of one kernel's text


def kernels_of_groups(planned: PlannedModel, scheduled: tvm.IRModule) -> list[tuple[str, ...]]:
    """Find the PrimFuncs that each group became, by the variables that they define.

    A group of several kernels has its last call bound to its output; the calls before it, whose
    results nothing else reads, belong to it as well.

    Returns
    -------
    list of tuple of str
        Of each group, in the order of the explanation, the names of PrimFuncs in the order of the
        calls; empty for a group that none is found for.
    """
    names: list[tuple[str, ...]] = []
    for block, plan in planned.plans.items():
        calls: dict[str, tuple[str, ...]] = {}
        for name, kernels in _calls(scheduled[planned.functions[block]]):
            calls.setdefault(name, kernels)  # readers may write it again, in another layout
        for claim in plan.claims:
            defined = (value.name for value in claim.group.outputs)
            found = next((calls[name] for name in defined if name in calls), ())
            names.append(found)
    return names


def texts(
    planned: PlannedModel, scheduled: tvm.IRModule, names: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Write PrimFuncs as TVMScript, and in the target's language where it has one.

    Returns
    -------
    dict of str to dict
        By the names of PrimFuncs, texts by their language.
    """
    known = {gvar.name_hint: func for gvar, func in scheduled.functions.items()}
    functions = {name: known[name] for name in names if isinstance(known.get(name), tirx.PrimFunc)}
    target = planned.spec.tvm_target()
    code = generated(functions, target)
    found = {}
    for name, func in functions.items():
        found[name] = {"TVMScript": _cut(func.script(name=name))}
        if name in code:
            found[name][LANGUAGES[target.kind.name]] = _cut(code[name])
    return found


def _cut(text: str) -> str:
    if len(text) <= _LARGEST:
        return text
    return f"{text[:_LARGEST]}\n... {len(text) - _LARGEST:,} more characters"


def _calls(func: relax.Function) -> Iterator[tuple[str, tuple[str, ...]]]:
    """List the variables of a scheduled function with the PrimFuncs that compute them."""
    made_by: dict[relax.Var, tuple[str, ...]] = {}
    readers: dict[relax.Var, int] = {}
    bindings = [b for block in func.body.blocks for b in block.bindings]
    for binding in bindings:
        for var in relax.analysis.free_vars(getattr(binding, "value", relax.Tuple([]))):
            readers[var] = readers.get(var, 0) + 1
    for binding in bindings:
        value = getattr(binding, "value", None)
        if isinstance(value, relax.Var):
            made_by[binding.var] = made_by.get(value, ())
        elif isinstance(value, relax.TupleGetItem):
            made_by[binding.var] = made_by.get(value.tuple_value, ())
        elif isinstance(value, relax.Call) and _is_kernel(value):
            own = {"kernel", "workspace", "packed"}
            before = [
                name
                for arg in relax.analysis.free_vars(value)
                if arg.name.rstrip("0123456789") in own and readers.get(arg) == 1
                for name in made_by.get(arg, ())
            ]
            made_by[binding.var] = (*dict.fromkeys(before), value.args[0].name_hint)
    for var, names in made_by.items():
        yield var.name, names
        if _LAYOUT.search(var.name):
            yield _LAYOUT.sub("", var.name), names


def _is_kernel(call: relax.Call) -> bool:
    return getattr(call.op, "name", "") in ("relax.call_tir", "relax.call_tir_inplace")
