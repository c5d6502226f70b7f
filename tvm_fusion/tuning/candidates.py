"""A folder of candidates: built where the compiler is, to be measured where the device is.

  survey the model; per task the default and configurations that are not recorded yet
  build each into a library, in a process of its own
  folder/  candidates.json  measure.py  NUMBER_NUMBER.so ...

``measure.py`` (:mod:`.measure_candidates`) needs neither the compiler nor this package. What it
writes is imported like any exported records; exporting again continues from there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from .._tvm.fork import has_run_kernels
from ..config import FusionConfig
from ..core.flags import TF32
from ..core.template import Config
from ..deploy.toolchain import toolchain
from ..device import TargetSpec, parse
from ..errors import UserError
from ..frontend import import_model
from ..fusion.cost import CostModel
from ..fusion.profile import Profile, profiling
from ..fusion.records import Records
from ..fusion.tuning_records import Trial, TuningRecords
from ..measure.budget import Budget
from ..measure.isolate import Failed, isolated
from ..measure.timing import TOLERANCE
from . import measure_candidates
from .measure import build
from .search import Search
from .tasks import MAIN, Task, survey
from .tuner import GAIN

SCHEMA = 1
BUILD_SECONDS = 300.0
REPEATS, REPEATED_BYTES = 16, 256 << 20  # calls of a GPU's group in one run, and their results


def export_candidates(
    model: Any,
    target: Any,
    folder: str | os.PathLike[str],
    config: FusionConfig | None = None,
    *,
    db: str | os.PathLike[str],
    budget: str = "trials=64",
    seed: int = 0,
) -> dict[str, Any]:
    """Build candidates of a model's kernels into a folder.

    Parameters
    ----------
    model, target, config
        As of :func:`tvm_fusion.tune`; the device need not be present.
    folder : str or os.PathLike
        Made; must be empty if it exists.
    db : str or os.PathLike
        Records: what they have is not built again; what cannot be built is recorded.
    budget : str
        ``trials=N``: candidates besides defaults, shared among the tasks by their time.
    seed : int
        Of configurations and inputs.

    Returns
    -------
    dict
        ``folder``, ``tasks``, ``candidates``, ``failed``.

    Raises
    ------
    UserError
        For a model, target, budget, folder or file that cannot be used.
    """
    spending = Budget.parse(budget)
    if spending.trials is None:
        raise UserError(f"budget {budget!r} of candidates to export", "trials=N")
    config = replace(config or FusionConfig(), db=None, profile=None)
    spec = parse(target).rounding_to_tf32(TF32 in config.flags)
    if len(spec.archs) > 1:
        raise UserError(f"target {spec.text!r} names several architectures", "one")
    place = _empty(Path(folder))
    with Records.open(db) as records, profiling(Profile(records)):
        records.check_writable()
        imported = import_model(model, config)
        has_run_kernels()
        found = survey(imported, spec, config).tasks
        known = TuningRecords(records)
        counts = _shares(found, spec, spending.trials)
        tasks, failed = [], 0
        for number, (task, count) in enumerate(zip(found, counts, strict=True)):
            chosen = _chosen(task, known.trials(task.key), count, seed)
            entry, reasons = _export(task, chosen, spec, place, number)
            for one, reason in reasons:
                known.put_trial(task.key, task.title, Trial(one, None, None, reason))
            failed += len(reasons)
            if len(entry["candidates"]) > 1:
                tasks.append(entry)
    data = {
        "schema": SCHEMA,
        "kind": spec.kind,
        "target": spec.text,
        "apache-tvm": tvm.__version__,
        "seed": seed,
        "gain": GAIN,
        "tolerance": TOLERANCE,
        "tasks": tasks,
    }
    (place / "candidates.json").write_text(json.dumps(data, indent=1) + "\n")
    shutil.copyfile(measure_candidates.__file__, place / "measure.py")
    built = sum(len(task["candidates"]) for task in tasks)
    return {"folder": str(place), "tasks": len(tasks), "candidates": built, "failed": failed}


def _empty(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{str(folder)!r} is not empty", "a folder to make", "name another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{str(folder)!r} cannot be made ({error.strerror})") from error
    return folder


def _shares(tasks: Sequence[Task], spec: TargetSpec, trials: int) -> list[int]:
    """Share trials among tasks by the time that their calls are estimated to take."""
    cost = CostModel(spec.device)
    times = [task.calls * cost.cost(task.claim).us for task in tasks]
    total = sum(times) or 1.0
    return [max(1, round(trials * us / total)) for us in times]


def _chosen(task: Task, trials: Sequence[Trial], count: int, seed: int) -> list[Config]:
    """Choose the default, and configurations that are not recorded."""
    search = Search(task.configs, seed)
    for trial in trials:
        search.tell(trial)
    return [task.configs[0], *([] if search.is_over else search.propose(count))]


def _export(
    task: Task, configs: Sequence[Config], spec: TargetSpec, folder: Path, number: int
) -> tuple[dict[str, Any], list[tuple[Config, str]]]:
    """Build a task's candidates; the entry of the table, and what could not be built."""
    repeats = _repeats(task, spec)
    repeated = replace(task, mod=_repeated(task.mod, repeats))
    candidates: list[dict[str, Any]] = []
    failed: list[tuple[Config, str]] = []
    for place, config in enumerate(configs):
        file = f"{number}_{place}.so"

        def export(config: Config = config, file: str = file) -> None:
            with toolchain(spec) as tools:
                built = build(repeated, config, spec)
                built.export_library(str(folder / file), fcompile=tools.link)

        try:
            isolated(export, BUILD_SECONDS)
        except Failed as reason:
            failed.append((config, str(reason)))
            if not candidates:
                break  # without the default there is nothing to compare with
            continue
        candidates.append({"config": dict(config), "file": file})
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
        "candidates": candidates,
    }
    return entry, failed


def _repeats(task: Task, spec: TargetSpec) -> int:
    """Choose how often a run calls the group: a launch from Python takes longer than kernels."""
    if spec.kind == "llvm":
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
