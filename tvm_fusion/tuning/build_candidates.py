"""The candidates of one task, or the alternatives of a question, as libraries without weights.

A GPU's candidates leave their constants out: where the device is, tensors of the same mean and
deviation are drawn instead, a set for each call of several, as a model's weights are never in the
caches. Candidates, and alternatives of the planner, may take the same weights in another order, and
pack them differently: by functions that their libraries have, which run where they are drawn. Where
they do not come from the same constants, they keep them in the libraries, as a CPU's do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from ..core.constants.weight_names import WeightNames, constants, tracking, weight_key
from ..core.contract.template import Config
from ..core.contract.tuned import Lookup, Tuned
from ..deploy.cuda_graph.weight_prefetch import MODEL_BYTES
from ..deploy.memory.weights import MIN_BYTES, lift_constants
from ..device import TargetSpec
from ..ecg.closed_form import closed_form
from ..fusion.database.comparisons import Question
from ..measure.build import build_groups, export
from ..measure.isolate import Failed, isolated
from ..measure.timing import TOLERANCE
from .tasks import MAIN, Task, ends_of

BUILD_SECONDS = 300.0
# Calls of the group in one run, and their results, where launches are not captured in a graph.
REPEATS, REPEATED_BYTES = 16, 256 << 20
_SAMPLED = 1 << 16  # elements of a weight that its mean and deviation are taken of

# Of a constant: digest; shape, dtype, mean and deviation, or least and greatest. How it is packed:
# the library's function; shape and dtype of its result.
Weight = tuple[str, list[Any], list[Any]]
Failures = list[tuple[Config, str]]


@dataclass(frozen=True, eq=False)
class Variant:
    """One of the modules that are measured against each other."""

    config: Config  # what tells it from the others
    mod: tvm.IRModule  # groups, and ``main``, of the same tensors in all of them
    tuned: Lookup  # gives the configurations of its kernels


class _Packed(Exception):
    """Variants do not have their weights from the same constants."""


def export_task(
    task: Task,
    configs: Sequence[Config],
    spec: TargetSpec,
    folder: Path,
    number: int,
    model_bytes: int,
) -> tuple[dict[str, Any], Failures]:
    """Build a task's candidates into a folder.

    Parameters
    ----------
    folder
        Gets ``NUMBER_PLACE.so``.
    model_bytes
        Weights that contractions of the model read.

    Returns
    -------
    dict
        The task's entry of the table.
    list of (Config, str)
        What could not be built, and why. Without the default, no other is built.
    """
    repeats = _repeats(task, spec)
    mod = _repeated(task.mod, repeats)
    variants = [Variant(config, mod, _always(config)) for config in configs]
    candidates, weights, failed = _built(variants, spec, folder, str(number), model_bytes)
    entry = {
        "key": asdict(task.key),
        "title": task.title,
        "calls": task.calls,
        "repeats": repeats,
        "inputs": inputs_of(task.mod, ends_of(task)),
        "weights": weights,
        "candidates": candidates,
    }
    return entry, failed


def export_question(
    question: Question,
    mods: Sequence[tvm.IRModule],
    tolerance: float,
    tuned: Lookup,
    spec: TargetSpec,
    folder: Path,
    number: int,
    model_bytes: int,
) -> dict[str, Any]:
    """Build the alternatives of a question of the planner into a folder.

    Parameters
    ----------
    mods
        The alternatives, whose ``main`` take and return the same tensors.
    tolerance
        Error over the largest value that their results may differ by.
    tuned
        Gives the configurations of their kernels.
    spec, folder, number, model_bytes
        As of :func:`export_task`; the libraries are ``qNUMBER_PLACE.so``.

    Returns
    -------
    dict
        The question's entry of the table.

    Raises
    ------
    Failed
        If an alternative cannot be built.
    """
    variants = [Variant({"alternative": n}, mod, tuned) for n, mod in enumerate(mods)]
    built, weights, failed = _built(variants, spec, folder, f"q{number}", model_bytes)
    for _, reason in failed:
        raise Failed(reason)
    return {
        "question": asdict(question),
        "title": question.title,
        "repeats": 1,
        "tolerance": dict.fromkeys(TOLERANCE, tolerance),
        "inputs": inputs_of(mods[0]),
        "weights": weights,
        "candidates": built,
    }


def inputs_of(mod: tvm.IRModule, ends: Mapping[int, int] = MappingProxyType({})) -> list[list[Any]]:
    """List shapes and dtypes of what ``main`` takes, and how many rows those that are ends have."""
    types = [param.ty for param in mod[MAIN].params]
    found = [[[int(d) for d in type_.shape.values], str(type_.dtype)] for type_ in types]
    return [[*one, *([ends[number]] if number in ends else [])] for number, one in enumerate(found)]


def _always(config: Config) -> Lookup:
    return lambda claim, device: Tuned(config, 1.0, 1.0, "this candidate")


def _built(
    variants: Sequence[Variant], spec: TargetSpec, folder: Path, stem: str, model_bytes: int
) -> tuple[list[dict[str, Any]], list[list[Any]], Failures]:
    """Build all variants, without their constants where these can be drawn."""
    try:
        if spec.kind == "llvm":
            raise _Packed
        return _build(variants, spec, folder, stem, model_bytes)
    except _Packed:
        return _build(variants, spec, folder, stem, None)


def _build(
    variants: Sequence[Variant],
    spec: TargetSpec,
    folder: Path,
    stem: str,
    model_bytes: int | None,
) -> tuple[list[dict[str, Any]], list[list[Any]], Failures]:
    """Build all variants; with their constants, if the model's bytes are not given."""
    candidates: list[dict[str, Any]] = []
    drawn: dict[str, list[Any]] = {}
    failed: Failures = []
    for place, variant in enumerate(variants):
        path = folder / f"{stem}_{place}.so"

        def export(variant: Variant = variant, path: Path = path) -> list[Weight]:
            return _export(variant, spec, path, model_bytes)

        try:
            found = isolated(export, BUILD_SECONDS)
        except Failed as reason:
            failed.append((variant.config, str(reason)))
            if not candidates:
                break  # without the default there is nothing to compare with
            continue
        if not candidates:
            drawn = {digest: draw for digest, draw, _ in found}
        digests = list(drawn)
        if {digest for digest, _, _ in found} != set(digests):
            raise _Packed
        taken = [[digests.index(digest), *packing] for digest, _, packing in found]
        candidates.append({"config": dict(variant.config), "file": path.name, "weights": taken})
    return candidates, list(drawn.values()), failed


def _export(
    variant: Variant, spec: TargetSpec, path: Path, model_bytes: int | None
) -> list[Weight]:
    """Build one variant into a library; the weights that it wants behind its inputs."""
    weights: list[Weight] = []
    named = [] if model_bytes is None else constants(variant.mod)
    own = {str(n): c for n, c in enumerate(named) if closed_form(c) is None}
    names = WeightNames(own.items())

    def lift(mod: tvm.IRModule) -> tvm.IRModule:
        if model_bytes is None:
            return mod
        lifted = lift_constants(mod, MIN_BYTES)
        known, packings = names.of(mod), names.packings(mod)
        for constant in lifted.weights.get(MAIN, ()):
            packing, how = packings.get(constant), []
            if packing is not None:
                type_ = constant.ty
                how = [packing.function, [int(d) for d in type_.shape.values], str(type_.dtype)]
            weights.append(
                (*drawn_weight(constant if packing is None else own[known[constant]]), how)
            )
        main = lifted.mod[MAIN].with_attr(MODEL_BYTES, model_bytes)
        lifted.mod.update_func(lifted.mod.get_global_var(MAIN), main)
        return lifted.mod

    with tracking(names):
        export(build_groups(variant.mod, spec, variant.tuned, lift), spec, path)
    return weights


def drawn_weight(constant: ir.GenericConst) -> tuple[str, list[Any]]:
    """Describe what is drawn for a constant, behind its digest."""
    array = constant.value.numpy()
    sample = array.reshape(-1)[:: max(1, array.size // _SAMPLED)]
    if array.dtype.kind in "iub":
        drawn: list[float] = [int(array.min()), int(array.max())]
    else:
        wide = sample.astype("float64")
        finite = wide[np.isfinite(wide)]
        drawn = [float(finite.mean()), float(finite.std())] if finite.size else [0.0, 0.0]
    return weight_key(array), [list(array.shape), str(array.dtype), *drawn]


def _repeats(task: Task, spec: TargetSpec) -> int:
    """Choose how often a run calls the group: a launch from Python takes longer than kernels.

    Not where the bench captures calls in a CUDA graph.
    """
    if spec.kind in ("llvm", "cuda"):
        return 1
    size = sum(value.bytes for value in task.claim.group.outputs)
    return max(1, min(REPEATS, REPEATED_BYTES // max(size, 1)))


def _repeated(mod: tvm.IRModule, repeats: int) -> tvm.IRModule:
    """Let ``main`` call its group several times; it returns all results."""
    if repeats == 1:
        return mod
    main = mod[MAIN]
    (call,) = [
        binding.value
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    functions = {gvar: func for gvar, func in mod.functions.items() if gvar.name_hint != MAIN}
    builder = relax.BlockBuilder(tvm.IRModule(functions))
    with builder.function(MAIN, list(main.params)):
        with builder.dataflow():
            results = [builder.emit(relax.Call(call.op, call.args)) for _ in range(repeats)]
            output = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(output)
    return builder.get()
