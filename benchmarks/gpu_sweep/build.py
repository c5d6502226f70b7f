"""Compile the candidates ahead of time, where there is no GPU: a library for each configuration."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tvm import relax
from tvm.ir.transform import Sequential

from tvm_fusion.config import FusionConfig
from tvm_fusion.core.contract.template import Config
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import TargetSpec, parse
from tvm_fusion.frontend import Imported, import_model
from tvm_fusion.pipeline import stages
from tvm_fusion.tuning import measure
from tvm_fusion.tuning.candidates import choose
from tvm_fusion.tuning.tasks import MAIN, calls_of, survey

from .shapes import INDEX, swept

OF_KERNEL = 2  # configurations of each kernel that are measured at least


def build(
    folder: Path, target: str, count: int, only: Sequence[str] = (), processes: int = 1
) -> list[str]:
    """Compile candidates of all shapes into a folder.

    Parameters
    ----------
    folder
        Gets a library for each candidate, and an index; what it has of other shapes stays.
    target
        As of :func:`tvm_fusion.device.parse`.
    count
        Candidates of a shape, against the default's with other splits of K and orders of tiles.
    only
        Parts of names; empty: all.
    processes
        Of which each compiles a shape at a time.

    Returns
    -------
    list of str
        What could not be compiled, and why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, failed = folder / INDEX, []
    index: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"shapes": []}
    index["target"] = target
    chosen = [name for name in swept() if not only or any(part in name for part in only)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = {name: pool.submit(_shape, name, target, folder, count) for name in chosen}
        for name, job in jobs.items():
            entry, reasons = job.result()
            index["shapes"] = [s for s in index["shapes"] if s["name"] != name] + [entry]
            failed += reasons
            print(name, len(entry["candidates"]), flush=True)
            path.write_text(json.dumps(index, indent=1) + "\n")
    return failed


def _shape(name: str, target: str, folder: Path, count: int) -> tuple[dict[str, Any], list[str]]:
    work = swept()[name]
    spec = parse(target).permitting(work.allow)
    config = FusionConfig(db=None, profile=None, allow=work.allow)
    imported = import_model(work.exported(), config)
    (task,) = survey(imported, spec, config).tasks
    found = list(task.claim.template.estimates(task.claim, spec.device))
    candidates, failed = [], []
    chosen_ones = choose(found, task.configs[0], count)
    chosen_ones += [c for c in orders(task.configs) if c not in chosen_ones]
    chosen_ones += [c for c in of_each_kernel(found) if c not in chosen_ones]
    for number, chosen in enumerate(chosen_ones):
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
        estimate = next(value for config, value in found if config == chosen)
        candidates.append({"file": file, "config": dict(chosen), "clocks": round(estimate)})
    return {
        "name": work.name,
        "order": _order(imported, spec, config),
        "inputs": [[int(d) for d in p.ty.shape.values] for p in task.mod[MAIN].params],
        "candidates": candidates,
    }, failed


def orders(configs: Sequence[Config]) -> list[Config]:
    """Return those that differ from the default only in split-K or the order of tiles."""
    default, free = configs[0], ("split_k", "group_m", "stages")
    if "split_k" not in default:
        return []
    fixed = {name: value for name, value in default.items() if name not in free}
    alike = [c for c in configs[1:] if fixed.items() <= c.items()]
    found: dict[tuple[Any, ...], Config] = {}
    for config in alike:  # of the stages that a split leaves, the default's, or the first
        key = config["split_k"], config["group_m"]
        if key not in found or config["stages"] == default["stages"]:
            found[key] = config
    found.pop((default["split_k"], default["group_m"]), None)
    return list(found.values())


def of_each_kernel(found: Sequence[tuple[Config, float]]) -> list[Config]:
    """Return the configurations estimated fastest for each kernel; ping-pong is one."""
    chosen: dict[tuple[Any, ...], list[Config]] = {}
    for config, _ in sorted(found, key=lambda one: one[1]):
        kind = tuple(config.get(name) for name in ("kernel", "uses_wgmma", "is_ping_pong"))
        chosen.setdefault(kind, []).append(config)
    return [config for ranked in chosen.values() for config in ranked[:OF_KERNEL]]


def _order(imported: Imported, spec: TargetSpec, config: FusionConfig) -> list[int]:
    """Return, for each argument of the group, its position among the workload's arguments."""
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
    """Return the position of a parameter, also behind reshapes."""
    while isinstance(bound.get(arg), relax.Call) and len(bound[arg].args):
        arg = bound[arg].args[0]
    return next((i for i, p in enumerate(params) if p.same_as(arg)), None)
