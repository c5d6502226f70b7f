"""Compile the candidates ahead of time, where there is no GPU: a library for each configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm import relax
from tvm.ir.transform import Sequential

from benchmarks.gpu.catalog import works
from benchmarks.gpu.works import Work
from tvm_fusion.config import FusionConfig
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import TargetSpec, parse
from tvm_fusion.frontend import Imported, import_model
from tvm_fusion.pipeline import stages
from tvm_fusion.tuning import measure
from tvm_fusion.tuning.model_order import choose, estimated
from tvm_fusion.tuning.tasks import MAIN, calls_of, survey

from .shapes import COUNT, INDEX, SEED, names


def build(folder: Path, target: str, count: int, only: Sequence[str] = ()) -> list[str]:
    """Compile candidates of all shapes into a folder.

    Parameters
    ----------
    folder : Path
        Gets a library for each candidate, and an index; what it has of other shapes stays.
    target : str
        As of :func:`tvm_fusion.device.parse`.
    count : int
        Candidates of a shape.
    only : sequence of str
        Parts of names; empty: all.

    Returns
    -------
    list of str
        What could not be compiled, and why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {work.name: work for work in works(SEED, COUNT)}
    spec, failed = parse(target), []
    path = folder / INDEX
    index: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"shapes": []}
    index["target"] = target
    for name in names():
        if only and not any(part in name for part in only):
            continue
        entry, reasons = _shape(known[name], spec, folder, count)
        index["shapes"] = [s for s in index["shapes"] if s["name"] != name] + [entry]
        failed += reasons
        print(name, len(entry["candidates"]), flush=True)
        path.write_text(json.dumps(index, indent=1) + "\n")
    return failed


def _shape(
    work: Work, spec: TargetSpec, folder: Path, count: int
) -> tuple[dict[str, Any], list[str]]:
    spec = spec.permitting(work.allow)
    config = FusionConfig(db=None, profile=None, allow=work.allow)
    imported = import_model(work.exported(), config)
    (task,) = survey(imported, spec, config).tasks
    found = estimated(task.claim, spec.device)
    clocks = [(config, value) for value, config in found]
    candidates, failed = [], []
    for number, chosen in enumerate(choose(found, task.configs[0], count)):
        file = f"{work.name}_{number}.so"
        try:
            with toolchain(spec) as tools:
                built = measure.build(task, chosen, spec)
                built.export_library(str(folder / file), fcompile=tools.link)
        # guard: one candidate that is not compiled is a line of the page
        except Exception as error:
            reason = str(error).strip().splitlines()[-1][:200]
            failed.append(f"{work.name}: {chosen}: {type(error).__name__}: {reason}")
            continue
        estimate = next(value for config, value in clocks if config == chosen)
        candidates.append({"file": file, "config": dict(chosen), "clocks": round(estimate)})
    return {
        "name": work.name,
        "order": _order(imported, spec, config),
        "inputs": [[int(d) for d in p.ty.shape.values] for p in task.mod[MAIN].params],
        "candidates": candidates,
    }, failed


def _order(imported: Imported, spec: TargetSpec, config: FusionConfig) -> list[int]:
    """Give the number of the work's argument that each of the group's is."""
    with spec.tvm_target():
        mod = Sequential(stages(config)[:-1])(imported.mod)
    main = mod[MAIN]
    bound = {b.var: b.value for block in main.body.blocks for b in block.bindings}
    ((_, call, _),) = calls_of(mod)
    found = [_argument(arg, list(main.params), bound) for arg in call.args]
    return [number for number in found if number is not None]  # the others are constants


def _argument(
    arg: relax.Expr, params: Sequence[relax.Var], bound: Mapping[relax.Var, relax.Expr]
) -> int | None:
    """Give the number of a parameter, also behind reshapes."""
    while isinstance(bound.get(arg), relax.Call) and len(bound[arg].args):
        arg = bound[arg].args[0]
    return next((i for i, p in enumerate(params) if p.same_as(arg)), None)
