"""From lowered modules to machine code for all architectures, with kernels counted."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm import tirx

from ..._tvm.versions import PIPELINE
from ...core.weight_names import Packing
from ...device import TargetSpec
from ...errors import UserError
from .amd_code import check_amd_code
from .architectures import Merged, merge, suffix
from .codegen import Compiled, compiling
from ..count import Lowered, count, is_gpu
from .prepare import Prepared, same_bits
from ..toolchain import thread_team, toolchain
from ..runtime.weights_file import StoredWeight


@dataclass(frozen=True)
class Built:
    """A compiled model.

    Attributes
    ----------
    compiled : Compiled
        Bytecode and machine code of all architectures.
    counts : dict of str to dict
        By architecture and function: ``kernels``, ``host_launches``, ``calls``,
        ``intermediate_bytes``.
    suffixes : dict of str to str
        By architecture, what stands behind the names of the library's functions.
    names : dict of str to dict of str to str
        By architecture, the library's names of all functions and kernels; empty for one.
    kernels : dict of tuple of str to list of str
        By architectures, the kernels for exactly these; empty for one.
    """

    compiled: Compiled
    counts: dict[str, dict[str, Any]]
    suffixes: dict[str, str]
    names: dict[str, dict[str, str]]
    kernels: dict[tuple[str, ...], list[str]]


def build(prepared: Mapping[str, Prepared], spec: TargetSpec) -> Built:
    """Build what was prepared for each architecture; runs under the toolchain.

    Returns
    -------
    Built

    Raises
    ------
    UserError
        If a kernel's machine code is wrong, as far as that is checked.
    """
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
    if spec.kind == "rocm":
        check_amd_code(compiled.executable.mod)
    return Built(compiled, counts, suffixes, merged.names, merged.kernels)


def store(
    prepared: Mapping[str, Prepared], names: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, StoredWeight]]]:
    """Decide what is stored of the weights of several architectures: equal ones once.

    Parameters
    ----------
    names : mapping of str to mapping of str to str
        By architecture, the library's names of packing functions, where they are others.

    Returns
    -------
    dict of str to numpy.ndarray
        By label, what to store.
    dict of str to dict of str to StoredWeight
        By architecture, each weight by its name.
    """
    stored: dict[str, np.ndarray] = {}
    used: dict[str, dict[str, StoredWeight]] = {}
    for arch, one in prepared.items():
        used[arch] = {}
        for name, array in one.weights.items():
            labels = [name, *(name + suffix(other) for other in used)]
            label = next((x for x in labels if same_bits(stored.get(x), array)), None)
            if label is None:
                label = next(x for x in (name, name + suffix(arch)) if x not in stored)
                stored[label] = array
            packing = one.packings.get(name)
            if packing is not None:
                function = names.get(arch, {}).get(packing.function, packing.function)
                packing = Packing(function, packing.shape)
            used[arch][name] = StoredWeight(label, packing)
    return stored, used


def export_library(compiled: Compiled, spec: TargetSpec, path: Path) -> None:
    """Link an executable into a shared library with the target's own tools."""
    with toolchain(spec) as tools, tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder, f"kernels{number}.o") for number in range(len(compiled.objects))]
        for place, code in zip(objects, compiled.objects, strict=True):
            place.write_bytes(code)
        if spec.kind == "llvm":
            objects.append(Path(folder, "thread_team.o"))
            objects[-1].write_bytes(thread_team(spec.triple))
        try:
            compiled.executable.export_library(
                str(path), fcompile=tools.link, addons=[str(place) for place in objects]
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
