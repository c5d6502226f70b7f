"""From scheduled functions to modules lowered for one architecture each: weights out."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tvm
import tvm_ffi
from tvm.ir import GenericConst
from tvm.target import Target

from ...core.constants.numpy_types import array_of
from ...core.constants.weight_names import Packing, WeightNames
from ...core.contract.kernel_info import collecting
from ...core.decisions import recording
from ...core.progress import report
from ...device import TargetSpec
from ...errors import UserError
from ...frontend import Imported
from ...signature import DimRange
from ..cuda_graph.weights_tuple import MAY_PASS_TUPLE, passes_tuple
from ..memory.destinations import add_destinations, destinations
from ..memory.weights import MIN_BYTES, lift_constants
from .lower import LowerToVM


@dataclass(frozen=True)
class Prepared:
    """A module that is lowered for one architecture, and what the manifest tells of it."""

    mod: tvm.IRModule  # what TVM makes bytecode and machine code of
    weights: dict[str, np.ndarray]  # by name, for all functions
    # By function, the weights in the order in which they follow its inputs.
    weight_names: dict[str, list[str]]
    packings: dict[str, Packing]  # by name, of weights that are packed
    target: Target  # with the one architecture
    extents: dict[str, int]  # of symbolic dimensions, at which kernels are counted
    # By function, the results that its form with destinations takes as parameters.
    destinations: dict[str, list[int]]
    # By function, whether it takes its weights as one tuple.
    passes_tuple: dict[str, bool] = field(default_factory=dict)
    # By name, of which a weight is the elements.
    constants: dict[str, GenericConst] = field(default_factory=dict)


def prepare(
    mod: tvm.IRModule,
    spec: TargetSpec,
    functions: list[str],
    dims: Mapping[str, DimRange],
    model_names: WeightNames,
    min_bytes: int = MIN_BYTES,
) -> Prepared:
    """Lower a module whose functions are scheduled; runs under the target and its toolchain.

    Parameters
    ----------
    mod
        ``call_tir`` on scheduled PrimFuncs.
    dims
        Ranges of symbolic dimensions; counts are taken at the upper ends.
    model_names
        Of constants, with how they were packed.
    min_bytes
        Constants below this many bytes stay in the code.
    """
    lifted = lift_constants(mod, min_bytes)
    lowered = add_destinations(_may_pass_tuple(lifted.mod, functions), functions)
    lowered = tvm.ir.transform.Sequential([LowerToVM()])(lowered)
    passed = {name: destinations(lowered, name) for name in functions}
    tuples = {name: passes_tuple(lowered, name) for name in functions}
    weights, weight_names = _name_weights(lifted.weights, model_names.of(mod))
    packings = _packings(lifted.weights, weight_names, model_names.packings(mod))
    extents = {name: dim.high for name, dim in dims.items()}
    of_names = {
        name: const
        for function, lifted_here in lifted.weights.items()
        for name, const in zip(weight_names[function], lifted_here, strict=True)
    }
    return Prepared(
        lowered, weights, weight_names, packings, spec.tvm_target(), extents, passed, tuples,
        of_names,
    )  # fmt: skip


def prepare_workers(
    parts: Sequence[Imported],
    twins: Sequence[Mapping[int, GenericConst]],
    schedule: Callable[[Imported], tvm.IRModule],
    spec: TargetSpec,
    model_names: WeightNames,
) -> list[Prepared]:
    """Lower a model for one architecture, once for each worker; parameters as of :func:`prepare`.

    Parameters
    ----------
    parts
        By rank, what each worker computes; one if there are no others.
    twins
        By rank, what a worker has in the places of the first one's constants, by their hashes.

    Raises
    ------
    UserError
        If the workers differ in more than their weights.
    """
    found: list[Prepared] = []
    for rank, part in enumerate(parts):
        if rank and (same := _of_twins(found[0], twins[rank], model_names)):
            found.append(same)
            continue
        with contextlib.ExitStack() as stack:
            if rank:  # what is decided for the first worker is decided for all
                stack.enter_context(recording())
                stack.enter_context(collecting())
            mod = schedule(part)
            report("planning memory")
            # Small constants would differ in the code, were they not weights.
            least = 0 if len(parts) > 1 else MIN_BYTES
            public = list(part.signatures)
            found.append(prepare(mod, spec, public, part.dims, model_names, least))
        if rank and not _same_code(found[0], found[rank]):
            raise UserError(
                f"the code of worker {rank} would differ from that of worker 0",
                "one code for all workers",
                "keep weights whole by shards={NAME: 'whole'}, and report this model",
            )
    return found


def _of_twins(
    first: Prepared, twins: Mapping[int, GenericConst], model_names: WeightNames
) -> Prepared | None:
    """Make what the first worker's weights would be of another's constants: the code is one.

    Returns
    -------
    Prepared or None
        ``None`` where nobody has told how a weight was made.
    """
    weights = {}
    for name, const in first.constants.items():
        twin = model_names.twin(const, twins)
        if twin is None:
            return None
        weights[name] = first.weights[name] if twin.same_as(const) else array_of(twin.value)
    return replace(first, weights=weights)


def _same_code(one: Prepared, other: Prepared) -> bool:
    """Whether two workers' modules differ in nothing but their weights."""
    same_names = one.weight_names == other.weight_names
    return same_names and tvm_ffi.structural_equal(one.mod, other.mod)


def _may_pass_tuple(mod: tvm.IRModule, functions: list[str]) -> tvm.IRModule:
    """Say of functions that who calls them reads from the manifest how weights are passed."""
    mod = mod.clone()
    for name in functions:
        mod.update_func(mod.get_global_var(name), mod[name].with_attr(MAY_PASS_TUPLE, True))
    return mod


def _name_weights(
    lifted: Mapping[str, list[GenericConst]], model_names: Mapping[GenericConst, str]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Name each lifted constant as in the model; duplicates of a name get a number.

    Namesakes of equal data in different functions are one weight, stored once.
    """
    weights: dict[str, np.ndarray] = {}
    order: dict[str, list[str]] = {}
    samples: dict[str, bytes] = {}  # of constants without names there may be hundreds
    for function, constants in lifted.items():
        names: dict[str, None] = {}
        for constant in constants:
            array, base = array_of(constant.value), model_names.get(constant, "constant")
            sample = sample_of(array)
            numbered = (f"{base}#{number}" for number in itertools.count(2))
            for name in itertools.chain([base], numbered):
                alike = name not in names and samples.get(name) == sample
                if name not in weights or (alike and same_bits(weights[name], array)):
                    break
            if name not in weights:
                weights[name], samples[name] = array, sample
            names[name] = None
        order[function] = list(names)
    return weights, order


def sample_of(array: np.ndarray) -> bytes:
    """Take some bytes of an array, which tell it from most others."""
    flat = array.reshape(-1).view(np.uint8)
    return flat[:: flat.size // 256 | 1].tobytes()


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


def same_bits(one: np.ndarray | None, other: np.ndarray) -> bool:
    """Whether two arrays are stored alike: NaN equals itself, -0 does not equal 0."""
    if one is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))
