"""From scheduled functions to machine code: weights out, virtual machine in, kernels counted."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir import GenericConst
from tvm.target import Target

from .._tvm.versions import PIPELINE
from ..core.weight_names import Packing, WeightNames
from ..device import TargetSpec
from ..errors import UserError
from ..signature import DimRange
from .amd_code import check_amd_code
from .architectures import Merged, merge, suffix
from .codegen import Compiled, compiling
from .count import count
from .destinations import add_destinations, destinations
from .lower import LowerToVM
from .toolchain import toolchain
from .weights import MIN_BYTES, lift_constants
from .weights_file import StoredWeight
from .weights_tuple import MAY_PASS_TUPLE, passes_tuple


@dataclass(frozen=True)
class Prepared:
    """A module that is lowered for one architecture, and what the manifest tells of it.

    Attributes
    ----------
    mod : tvm.IRModule
        What TVM makes bytecode and machine code of.
    weights : dict of str to numpy.ndarray
        By name, for all functions.
    weight_names : dict of str to list of str
        By function, the weights in the order in which they follow its inputs.
    packings : dict of str to Packing
        By name, of weights that are packed.
    target : Target
        With the one architecture.
    extents : dict of str to int
        Of symbolic dimensions, at which kernels are counted.
    destinations : dict of str to list of int
        By function, the results that its form with destinations takes as parameters.
    passes_tuple : dict of str to bool
        By function, whether it takes its weights as one tuple.
    """

    mod: tvm.IRModule
    weights: dict[str, np.ndarray]
    weight_names: dict[str, list[str]]
    packings: dict[str, Packing]
    target: Target
    extents: dict[str, int]
    destinations: dict[str, list[int]]
    passes_tuple: dict[str, bool] = field(default_factory=dict)


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


def prepare(
    mod: tvm.IRModule,
    spec: TargetSpec,
    functions: list[str],
    dims: Mapping[str, DimRange],
    model_names: WeightNames,
) -> Prepared:
    """Lower a module whose functions are scheduled; runs under the target and its toolchain.

    Parameters
    ----------
    mod : tvm.IRModule
        ``call_tir`` on scheduled PrimFuncs.
    spec : TargetSpec
        What for: one architecture.
    functions : list of str
        The public functions.
    dims : mapping of str to DimRange
        Ranges of symbolic dimensions; counts are taken at the upper ends.
    model_names : WeightNames
        Of constants, with how they were packed.

    Returns
    -------
    Prepared
    """
    lifted = lift_constants(mod, MIN_BYTES)
    lowered = add_destinations(_may_pass_tuple(lifted.mod, functions), functions)
    lowered = tvm.ir.transform.Sequential([LowerToVM()])(lowered)
    passed = {name: destinations(lowered, name) for name in functions}
    tuples = {name: passes_tuple(lowered, name) for name in functions}
    weights, weight_names = _name_weights(lifted.weights, model_names.of(mod))
    packings = _packings(lifted.weights, weight_names, model_names.packings(mod))
    extents = {name: dim.high for name, dim in dims.items()}
    return Prepared(
        lowered, weights, weight_names, packings, spec.tvm_target(), extents, passed, tuples
    )


def build(prepared: Mapping[str, Prepared], spec: TargetSpec) -> Built:
    """Build what was prepared for each architecture; runs under the toolchain.

    Parameters
    ----------
    prepared : mapping of str to Prepared
        By architecture.
    spec : TargetSpec
        All of the architectures.

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
    with target, compiling(merged.mod, target, PIPELINE) as compiled_code:
        counts = {arch: _counts(one) for arch, one in prepared.items()}  # meanwhile
        compiled = compiled_code()
    if spec.kind == "rocm":
        check_amd_code(compiled.executable.mod)
    return Built(compiled, counts, suffixes, merged.names, merged.kernels)


def store(
    prepared: Mapping[str, Prepared], names: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, StoredWeight]]]:
    """Decide what is stored of the weights of several architectures: equal ones once.

    Parameters
    ----------
    prepared : mapping of str to Prepared
        By architecture.
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
            label = next((x for x in labels if _same_bits(stored.get(x), array)), None)
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
        try:
            compiled.executable.export_library(
                str(path), fcompile=tools.link, addons=[str(place) for place in objects]
            )
        except RuntimeError as error:  # what TVM raises around the linker's output
            output = str(error).strip().splitlines()[1:] or [str(error)]
            reason = next((line for line in output if "fail" in line or "error" in line), output[0])
            raise UserError(f"linking {path.name} failed ({reason})") from error


def _may_pass_tuple(mod: tvm.IRModule, functions: list[str]) -> tvm.IRModule:
    """Say of functions that who calls them reads from the manifest how weights are passed."""
    mod = mod.clone()
    for name in functions:
        mod.update_func(mod.get_global_var(name), mod[name].with_attr(MAY_PASS_TUPLE, True))
    return mod


def _counts(one: Prepared) -> dict[str, Any]:
    with one.target:
        return {name: _count(one, name) for name in one.destinations}


def _count(one: Prepared, function: str) -> dict[str, Any]:
    result = count(one.mod, one.target, function=function, dims=one.extents, tir_pipeline=PIPELINE)
    return {
        "kernels": result.kernels,
        "host_launches": result.host_launches,
        "calls": result.calls,
        "intermediate_bytes": result.intermediate_bytes,
    }


def _name_weights(
    lifted: Mapping[str, list[GenericConst]], model_names: Mapping[GenericConst, str]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Give each lifted constant its name in the model; a number tells namesakes apart.

    Namesakes of equal data in different functions are one weight, stored once.
    """
    weights: dict[str, np.ndarray] = {}
    order: dict[str, list[str]] = {}
    for function, constants in lifted.items():
        names: list[str] = []
        for constant in constants:
            array, base = _view(constant.value), model_names.get(constant, "constant")
            numbered = (f"{base}#{number}" for number in itertools.count(2))
            for name in itertools.chain([base], numbered):
                shared = name not in names and _same_bits(weights.get(name), array)
                if shared or name not in weights:
                    break
            weights.setdefault(name, array)
            names.append(name)
        order[function] = names
    return weights, order


def _view(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """Give a constant's elements as an array, without a copy where numpy has their type."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError):  # bfloat16
        return tensor.numpy()


def _packings(
    lifted: Mapping[str, list[GenericConst]],
    names: Mapping[str, list[str]],
    packings: Mapping[GenericConst, Packing],
) -> dict[str, Packing]:
    """Tell which named weights are packed, and how."""
    return {
        name: packings[constant]
        for function, constants in lifted.items()
        for constant, name in zip(constants, names[function], strict=True)
        if constant in packings
    }


def _same_bits(one: np.ndarray | None, other: np.ndarray) -> bool:
    if one is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))
