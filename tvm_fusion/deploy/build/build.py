"""From lowered modules to machine code for all architectures, with kernels counted."""

import functools
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.target import codegen

from ..._tvm.ir.structural import structural_walk
from ..._tvm.versions import PIPELINE
from ...core.constants.weight_names import Packing
from ...core.decisions import Decision, record
from ...device import Device, TargetSpec
from ...device.tile_permission import TILE_INTRINSICS, need_tiles
from ...errors import UserError
from ..count import Lowered, count, is_gpu
from ..runtime.artifact.weights_file import StoredWeight
from ..toolchain import thread_team, tile_permission, toolchain
from ..toolchain.rocm_code import KernelCode, amd_modules, faults, kernels
from ..toolchain.rocm_runtime import LINK_OPTIONS, begin_rocm_runtime, rocm_runtime
from ..toolchain.rocm_threads import texts_of
from .artifact import AT
from .codegen import Compiled, compiling
from .prepare import Prepared, same_bits, sample_of

_CALL = ir.Op.get("tirx.call_llvm_intrin")


def needed_features(mod: tvm.IRModule, device: Device) -> list[str]:
    """List the instruction sets that a lowered module's code needs, by LLVM's names.

    LLVM may choose instructions of all that the target has, in any loop. AMX's it never chooses by
    itself: they count where kernels have them, and float32 models need no permission for tiles.
    """
    features = set(device.features)
    tiles = {feature for feature in features if need_tiles([feature])}
    return sorted(features - tiles | (_used_tiles(mod) if tiles else set()))


def _used_tiles(mod: tvm.IRModule) -> set[str]:
    found: set[str] = set()
    intrinsics = _by_number()

    def look(call: ir.Call) -> None:
        if call.op == _CALL and (feature := intrinsics.get(int(call.args[0]))):
            found.add(feature)

    for func in mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            structural_walk(func.body, (ir.Call, look))
    return found


@functools.cache
def _by_number() -> Mapping[int, str]:
    number = codegen.llvm_lookup_intrinsic_id
    return {int(number(name)): feature for name, feature in TILE_INTRINSICS.items()}


@dataclass(frozen=True)
class Built:
    """A compiled model."""

    compiled: Compiled  # bytecode and machine code of all architectures
    # By architecture and function: ``kernels``, ``host_launches``, ``calls``,
    # ``intermediate_bytes``.
    counts: dict[str, dict[str, Any]]
    # By architecture, what stands behind the names of the library's functions.
    suffixes: dict[str, str]
    # By architecture, the library's names of all functions and kernels; empty for one.
    names: dict[str, dict[str, str]]
    # By architectures, the kernels for exactly these; empty for one.
    kernels: dict[tuple[str, ...], list[str]]
    needed: dict[str, list[str]]  # by CPU, the instruction sets that its code needs
    spills: bool = False  # whether kernels spill registers on AMD GPUs

    @property
    def instruction_sets(self) -> set[str]:
        """All that the code needs, of all CPUs."""
        return {feature for features in self.needed.values() for feature in features}


def build(prepared: Mapping[str, Prepared], spec: TargetSpec) -> Built:
    """Build what was prepared for each architecture; runs under the toolchain.

    Raises
    ------
    UserError
        If a kernel's machine code is wrong, as far as that is checked.
    """
    if spec.kind == "rocm":
        begin_rocm_runtime()
    mods = {arch: one.mod for arch, one in prepared.items()}
    suffixes, merged = dict.fromkeys(mods, ""), Merged(next(iter(mods.values())), {}, {})
    if len(mods) > 1:
        suffixes, merged = {arch: suffix(arch) for arch in mods}, merge(mods, spec)
    target = spec.tvm_target()
    packing = {
        merged.names.get(arch, {}).get(packing.function, packing.function)
        for arch, one in prepared.items()
        for packing in one.packings.values()
    }
    with target, compiling(merged.mod, target, PIPELINE, packing) as compiled_code:
        counts = {}
        if not is_gpu(target):
            counts = {arch: _counts(one, {}) for arch, one in prepared.items()}  # meanwhile
        compiled = compiled_code()
        if is_gpu(target):
            for arch, one in prepared.items():
                counts[arch] = _counts(one, _lowered(compiled, one, merged.names.get(arch, {})))
    spills = spec.kind == "rocm" and check_amd_code(compiled.executable.mod)
    devices = zip(spec.archs, spec.devices, strict=True) if spec.kind == "llvm" else ()
    needed = {arch: needed_features(mods[arch], device) for arch, device in devices}
    return Built(compiled, counts, suffixes, merged.names, merged.kernels, needed, spills)


def store(
    prepared: Mapping[str, Prepared], names: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, StoredWeight]]]:
    """Decide what is stored of the weights of several architectures: equal ones once.

    Parameters
    ----------
    names
        By architecture, the library's names of packing functions, where they are others.

    Returns
    -------
    dict of str to numpy.ndarray
        By label, what to store.
    dict of str to dict of str to StoredWeight
        By architecture, each weight by its name.
    """
    stored: dict[str, np.ndarray] = {}
    by_sample: dict[Any, list[str]] = {}
    used: dict[str, dict[str, StoredWeight]] = {}
    for arch, one in prepared.items():
        used[arch] = {}
        for name, array in one.weights.items():
            labels = [name, *(name + suffix(other) for other in used)]
            alike = by_sample.setdefault((array.shape, array.dtype, sample_of(array)), [])
            known = dict.fromkeys([*(x for x in labels if x in alike), *alike])
            label = next((x for x in known if same_bits(stored[x], array)), None)
            if label is None:
                label = next(x for x in (name, name + suffix(arch)) if x not in stored)
                stored[label] = array
                alike.append(label)
            packing = one.packings.get(name)
            if packing is not None:
                of_arch = names.get(arch.partition(AT)[0], {})
                function = of_arch.get(packing.function, packing.function)
                packing = Packing(function, packing.shape)
            used[arch][name] = StoredWeight(label, packing)
    return stored, used


def export_library(
    compiled: Compiled, spec: TargetSpec, path: Path, features: Iterable[str] = ()
) -> None:
    """Link an executable into a shared library with the target's own tools.

    Parameters
    ----------
    features
        Instruction sets that a CPU's code needs: for AMX's the library asks when it is opened.
    """
    with toolchain(spec) as tools, tempfile.TemporaryDirectory() as folder:
        code, options = [*compiled.objects], {}
        if spec.kind == "llvm":
            code.append(thread_team(spec.triple))
        if spec.kind == "rocm":
            code.append(rocm_runtime())
            options = {"options": [*LINK_OPTIONS]}
        if need_tiles(features):
            code.append(tile_permission(spec.triple))
        objects = [Path(folder, f"part{number}.o") for number in range(len(code))]
        for place, content in zip(objects, code, strict=True):
            place.write_bytes(content)
        try:
            compiled.executable.export_library(
                str(path),
                fcompile=tools.link,
                addons=[str(place) for place in objects],
                **options,
            )
        except RuntimeError as error:  # what TVM raises around the linker's output
            output = str(error).strip().splitlines()[1:] or [str(error)]
            reason = next((line for line in output if "fail" in line or "error" in line), output[0])
            raise UserError(f"linking {path.name} failed ({reason})") from error


def _lowered(compiled: Compiled, one: Prepared, names: Mapping[str, str]) -> Lowered:
    """Find the host code of an architecture's PrimFuncs by their own names."""
    own = [g.name_hint for g, f in one.mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    library = {name: names.get(name, name) for name in own}
    return {name: compiled.hosts[x] for name, x in library.items() if x in compiled.hosts}


def _counts(one: Prepared, lowered: Lowered) -> dict[str, Any]:
    with one.target:
        return {name: _count(one, name, lowered) for name in one.destinations}


def _count(one: Prepared, function: str, lowered: Lowered) -> dict[str, Any]:
    result = count(
        one.mod, one.target, function=function, dims=one.extents, tir_pipeline=PIPELINE,
        lowered=lowered,
    )  # fmt: skip
    return {
        "kernels": result.kernels,
        "host_launches": result.host_launches,
        "calls": result.calls,
        "intermediate_bytes": result.intermediate_bytes,
    }


# One module of a model that was scheduled for several architectures.
#
# Each architecture keeps Relax functions of its own, with ``@`` and its name behind theirs. A
# kernel that came out equal for several is kept once, for a target that names them all; one that
# differs has its first architecture's name behind its own. The loader calls the functions of the
# device that is there, and machine code of others is never loaded.
_HOST = "tirx.is_host_func"


@dataclass(frozen=True)
class Merged:
    """Modules that became one."""

    mod: tvm.IRModule  # every kernel with its target
    # By architecture, the new name of each function by its old one.
    names: dict[str, dict[str, str]]
    # By architectures, the kernels that are kept for exactly these.
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
    mods
        By architecture, the same functions lowered for the virtual machine.
    """
    found = _kernels(mods, spec)
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


def _kernels(mods: Mapping[str, tvm.IRModule], spec: TargetSpec) -> list[_Kernel]:
    """List the kernels of all modules, equal ones of several once.

    AMD's code objects are for one architecture each, so nothing would be shared, and LLVM makes
    other code of equal loops for other CPUs.
    """
    found: list[_Kernel] = []
    alike: dict[tuple[Any, int], list[_Kernel]] = {}
    for arch, mod in mods.items():
        code = {"llvm": spec.of((arch,)).attrs, "rocm": arch}.get(spec.kind)
        for gvar, func in mod.functions.items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            bare = func.without_attr("global_symbol")
            is_host = _HOST in func.attrs
            key = None if is_host else code, tvm_ffi.structural_hash(bare)
            same = alike.setdefault(key, [])
            for kernel in same:
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


# The check of a build for AMD GPUs: what would run wrongly is refused, what is slow recorded.
def check_amd_code(module: Any) -> bool:
    """Check the machine code of a built module, and tell whether kernels spill registers.

    Parameters
    ----------
    module : tvm.runtime.Module
        Code of the host, which imports that of devices.

    Raises
    ------
    UserError
        Naming a kernel whose code is wrong. Kernels that spill registers, or keep arrays in
        scratch memory, are recorded as decisions instead.
    """
    spills = False
    for one in amd_modules(module):
        text, assembly = texts_of(one)
        for name, fault in faults(text, assembly):
            raise UserError(
                f"kernel '{name}' {fault}, in the code that was generated for the AMD GPU",
                "none that does",
                "report the model, and compile it for another target meanwhile",
            )
        for kernel in kernels(assembly):
            spills |= kernel.spills
            if kernel.spills or kernel.accumulation_registers:
                record(_out_of_registers(kernel))
    return spills


def _out_of_registers(kernel: KernelCode) -> Decision:
    sentence = (
        f"Its threads take {kernel.registers} registers, {kernel.accumulation_registers} of them "
        f"accumulation registers; {kernel.spilled} are spilled, {kernel.scratch_bytes} bytes lie "
        "in scratch memory."
    )
    return Decision(kernel.name, "", "refused", "out_of_registers", sentence)
