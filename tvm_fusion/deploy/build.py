"""From scheduled functions to machine code: weights out, virtual machine in, kernels counted."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir import GenericConst

from .._tvm import PIPELINE
from ..device import TargetSpec
from ..errors import UserError
from ..frontend.weights import Packing, WeightNames
from ..report.count import count
from ..signature import DimRange
from .amd_code import check_amd_code
from .codegen import Compiled, compiling
from .destinations import add_destinations, destinations
from .lower import LowerToVM
from .toolchain import toolchain
from .weights import MIN_BYTES, lift_constants


@dataclass(frozen=True)
class Built:
    """A compiled module and what the manifest tells of it.

    Attributes
    ----------
    compiled : Compiled
        Bytecode and machine code.
    weights : dict of str to numpy.ndarray
        By name, for all functions.
    weight_names : dict of str to list of str
        By function, the weights in the order in which they follow its inputs.
    packings : dict of str to Packing
        By name, of weights that are packed.
    counts : dict of str to dict
        By function: ``kernels``, ``host_launches``, ``calls``, ``intermediate_bytes``.
    destinations : dict of str to list of int
        By function, the results that its form with destinations takes as parameters.
    """

    compiled: Compiled
    weights: dict[str, np.ndarray]
    weight_names: dict[str, list[str]]
    packings: dict[str, Packing]
    counts: dict[str, dict[str, Any]]
    destinations: dict[str, list[int]]


def build(
    mod: tvm.IRModule,
    spec: TargetSpec,
    functions: list[str],
    dims: Mapping[str, DimRange],
    model_names: WeightNames,
) -> Built:
    """Build a module whose functions are scheduled; runs under the target and its toolchain.

    Parameters
    ----------
    mod : tvm.IRModule
        ``call_tir`` on scheduled PrimFuncs.
    spec : TargetSpec
        What for.
    functions : list of str
        The public functions.
    dims : mapping of str to DimRange
        Ranges of symbolic dimensions; counts are taken at the upper ends.
    model_names : WeightNames
        Of constants, with how they were packed.

    Returns
    -------
    Built

    Raises
    ------
    UserError
        If a kernel's machine code is wrong, as far as that is checked.
    """
    target = spec.tvm_target()
    lifted = lift_constants(mod, MIN_BYTES)
    lowered = add_destinations(lifted.mod, functions)
    lowered = tvm.ir.transform.Sequential([LowerToVM()])(lowered)
    passed = {name: destinations(lowered, name) for name in functions}
    extents = {name: dim.high for name, dim in dims.items()}
    with compiling(lowered, target, PIPELINE) as compiled_code:
        weights, weight_names = _name_weights(lifted.weights, model_names.of(mod))
        packings = _packings(lifted.weights, weight_names, model_names.packings(mod))
        counts = {name: _count(lowered, target, name, extents) for name in functions}
        compiled = compiled_code()
    if spec.kind == "rocm":
        check_amd_code(compiled.executable.mod)
    return Built(compiled, weights, weight_names, packings, counts, passed)


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


def _count(
    mod: tvm.IRModule, target: Any, function: str, extents: Mapping[str, int]
) -> dict[str, Any]:
    result = count(mod, target, function=function, dims=extents, tir_pipeline=PIPELINE)
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
            array, base = constant.value.numpy(), model_names.get(constant, "constant")
            numbered = (f"{base}#{number}" for number in itertools.count(2))
            for name in itertools.chain([base], numbered):
                shared = name not in names and _same_bits(weights.get(name), array)
                if shared or name not in weights:
                    break
            weights.setdefault(name, array)
            names.append(name)
        order[function] = names
    return weights, order


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
