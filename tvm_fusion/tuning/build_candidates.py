"""The candidates of one task as libraries, without their weights.

A GPU's candidates leave their constants out: where the device is, tensors of the same mean and
deviation are drawn instead, a set for each call of several, as a model's weights are never in the
caches. A candidate that packs them differently from the default could not be compared with it then;
such a task keeps its constants in the libraries, as a CPU's do, whose packing is a choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from ..core.template import Config
from ..core.weight_names import weight_key
from ..deploy.toolchain import toolchain
from ..deploy.weight_prefetch import MODEL_BYTES
from ..deploy.weights import MIN_BYTES, lift_constants
from ..device import TargetSpec
from ..measure.isolate import Failed, isolated
from .measure import build
from .tasks import MAIN, Task

BUILD_SECONDS = 300.0
# Calls of the group in one run, and their results, where launches are not captured in a graph.
REPEATS, REPEATED_BYTES = 16, 256 << 20
_SAMPLED = 1 << 16  # elements of a weight that its mean and deviation are taken of

Weight = tuple[str, list[Any]]  # digest; shape, dtype, mean and deviation, or least and greatest
Failures = list[tuple[Config, str]]


class _Packed(Exception):
    """Candidates of a task have different forms of its weights."""


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
    task : Task
        The task.
    configs : sequence of Config
        The default, and others.
    spec : TargetSpec
        What for.
    folder : Path
        Gets ``NUMBER_PLACE.so``.
    number : int
        Of the task.
    model_bytes : int
        Weights that contractions of the model read.

    Returns
    -------
    dict
        The task's entry of the table.
    list of (Config, str)
        What could not be built, and why. Without the default, no other is built.
    """
    repeats = _repeats(task, spec)
    repeated = replace(task, mod=_repeated(task.mod, repeats))
    try:
        if spec.kind == "llvm":
            raise _Packed
        candidates, weights, failed = _build(repeated, configs, spec, folder, number, model_bytes)
    except _Packed:
        candidates, weights, failed = _build(repeated, configs, spec, folder, number, None)
    inputs = [
        [[int(d) for d in param.ty.shape.values], str(param.ty.dtype)]
        for param in task.mod[MAIN].params
    ]
    entry = {
        "key": asdict(task.key),
        "title": task.title,
        "calls": task.calls,
        "repeats": repeats,
        "inputs": inputs,
        "weights": weights,
        "candidates": candidates,
    }
    return entry, failed


def _build(
    task: Task,
    configs: Sequence[Config],
    spec: TargetSpec,
    folder: Path,
    number: int,
    model_bytes: int | None,
) -> tuple[list[dict[str, Any]], list[list[Any]], Failures]:
    """Build all candidates; with their constants, if the model's bytes are not given."""
    candidates: list[dict[str, Any]] = []
    weights: list[Weight] = []
    failed: Failures = []
    for place, config in enumerate(configs):
        path = folder / f"{number}_{place}.so"

        def export(config: Config = config, path: Path = path) -> list[Weight]:
            return _export(task, config, spec, path, model_bytes)

        try:
            found = isolated(export, BUILD_SECONDS)
        except Failed as reason:
            failed.append((config, str(reason)))
            if not candidates:
                break  # without the default there is nothing to compare with
            continue
        weights = weights if candidates else found
        if [digest for digest, _ in found] != [digest for digest, _ in weights]:
            raise _Packed
        candidates.append({"config": dict(config), "file": path.name})
    return candidates, [drawn for _, drawn in weights], failed


def _export(
    task: Task, config: Config, spec: TargetSpec, path: Path, model_bytes: int | None
) -> list[Weight]:
    """Build one candidate into a library; the weights that it wants behind its inputs."""
    weights: list[Weight] = []

    def lift(mod: tvm.IRModule) -> tvm.IRModule:
        if model_bytes is None:
            return mod
        lifted = lift_constants(mod, MIN_BYTES)
        weights.extend(map(_weight, lifted.weights.get(MAIN, ())))
        main = lifted.mod[MAIN].with_attr(MODEL_BYTES, model_bytes)
        lifted.mod.update_func(lifted.mod.get_global_var(MAIN), main)
        return lifted.mod

    with toolchain(spec) as tools:
        built = build(task, config, spec, lift)
        built.export_library(str(path), fcompile=tools.link)
    return weights


def _weight(constant: ir.GenericConst) -> Weight:
    """Describe what is drawn for a constant."""
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
