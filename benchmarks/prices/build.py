"""Plan models, take each distinct group once, and compile it with its alternatives.

    plan       a process for each model: its groups; what no other process has, with alternatives,
               lowered, without weights; what the planner's models of cost say of each
    compile    some ten functions to a library
    index      what the device needs to draw inputs and weights, and what the page needs

Nothing needs the device; the folder travels to it.
"""

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

import tvm
from tvm.ir.transform import Sequential

from benchmarks import zoo
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.core.decisions import recording
from tvm_fusion.deploy.build.lower import LowerToVM
from tvm_fusion.deploy.memory.weights import MIN_BYTES, lift_constants
from tvm_fusion.device import Device, TargetSpec, parse, probe
from tvm_fusion.frontend import Imported, import_model
from tvm_fusion.fusion.claims import claim_book, remembering
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.features import NAMES, features_of
from tvm_fusion.fusion.fuse import FuseOperators
from tvm_fusion.fusion.profile import ProfiledGroup
from tvm_fusion.measure.alternative_modules import MAIN, modules_of, tolerance
from tvm_fusion.pipeline import stages
from tvm_fusion.schedule.kernels import ScheduleKernels
from tvm_fusion.tuning.build_candidates import drawn_weight

from .alternatives import FUSED, PlannedGroup, bind_constants, parts_of, planned_groups
from .batches import Batches
from .compile_worker import reason


def about(claim: Claim, device: Device) -> dict[str, Any]:
    """Describe a group for a reader: its operators, template and form."""
    chosen = [form for form in claim.template.forms(claim, device) if form.is_chosen]
    group = claim.group
    return {
        "title": group.title,
        "template": claim.template.name,
        "form": chosen[0].name if chosen else "",
        "kernel": chosen[0].kernel if chosen else "",
    }


def priced(steps: Sequence[Claim | ProfiledGroup], device: Device) -> dict[str, Any]:
    """Price an alternative: microseconds by the planner's model and by the roofline, and why.

    Views cost nothing.
    """
    cost = CostModel(device)
    claims = [step for step in steps if isinstance(step, Claim)]
    estimates = [cost.cost(claim) for claim in claims]
    return {
        "us": round(sum(one.us for one in estimates), 3),
        "roofline_us": round(cost.roofline(claims), 3),
        "source": " and ".join(sorted({one.source for one in estimates})),
        "claims": [_claim(cost.chosen(claim), cost, device.kind == "llvm") for claim in claims],
    }


def _claim(claim: Claim, cost: CostModel, is_shared: bool) -> dict[str, Any]:
    """Tell a claim's template and features, as coefficients are fitted to them; without zeros."""
    row = features_of(claim, cost.cache_bytes, cost.units, is_shared=is_shared).row
    found = {name: float(f"{x:.5g}") for name, x in zip(NAMES, row, strict=True) if x}
    return {"template": claim.template.name, **found}


INDEX = "index.json"
GROUPS, LOWERED = "groups", "lowered"  # folders of modules
BATCH = 10  # functions of a library
MOST_BYTES = 1 << 31  # of a group's tensors
_HOST = ("cores", "l2_bytes", "l3_bytes")  # of the building machine, which its kernels depend on
PLANNING = 0.5  # of the time, at most: the rest is for compilers

Log = Callable[[str], None]


def build(
    folder: Path,
    target: str,
    models: Sequence[str],
    processes: int,
    log: Log = print,
    seconds: float = float("inf"),
) -> dict[str, Any]:
    """Plan models and compile their distinct groups into a folder.

    Parameters
    ----------
    folder
        New, or of an earlier call: models that it has are left out.
    target
        As of :func:`tvm_fusion.device.parse`.
    models
        Names of :mod:`.models`, of the zoo (``zoo:NAME``), or of a checkout of GraphNet
        (``graphnet:FOLDER``).
    processes
        That run side by side.
    seconds
        After which what is not compiled is given up; after half of it, what is not planned.

    Returns
    -------
    dict
        The index: ``target``, ``models`` (calls by group, or the reason of a failure), ``groups``.
    """
    end = time.monotonic() + seconds
    planned = end - (1 - PLANNING) * seconds if seconds < float("inf") else seconds
    for name in (GROUPS, LOWERED):
        (folder / name).mkdir(parents=True, exist_ok=True)
    path = folder / INDEX
    index: dict[str, Any] = {"target": target, "models": {}, "groups": {}, "failed": []}
    index["host"] = {name: getattr(probe.host_cpu(), name) for name in _HOST}
    if path.exists():
        index = json.loads(path.read_text())
    left = [name for name in models if name not in index["models"]]

    def note(name: str, found: dict[str, Any]) -> None:
        _note(index, name, found, log)
        path.write_text(json.dumps(index))

    if processes == 1:
        for name in left:
            note(name, plan(name, target, folder, planned))
    else:
        context = get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as pool:
            jobs = {pool.submit(plan, name, target, folder, planned): name for name in left}
            for job in as_completed(jobs):
                try:
                    note(jobs[job], job.result())
                except BrokenProcessPool:  # such as of memory; the groups so far are compiled
                    log(f"{jobs[job]}: the process ended")
    _compile(folder, index, processes, log, end - time.monotonic())
    return index


def _note(index: dict[str, Any], name: str, found: dict[str, Any], log: Log) -> None:
    index["models"][name] = found["calls"]
    index["groups"] |= found["groups"]
    index["failed"] += found["failed"]
    new = len(found["groups"])
    log(f"{name}: {len(found['calls'])} groups, {new} of them new, {found['seconds']:.0f} s")
    for line in found["failed"]:
        log(f"  {line}")


def imported(name: str, spec: TargetSpec) -> Imported:
    """Import a model by its name, in float16 for GPUs and in float32 for CPUs."""
    half = spec.kind != "llvm"
    source, _, rest = name.partition(":")
    config = FusionConfig(precision="fp16" if half and rest else "fp32")
    if source == "zoo":
        return import_model(zoo.load(rest, 0), config)
    if source == "graphnet":
        import torch

        from benchmarks.graphnet.sample import load

        module, inputs = load(Path(rest))
        return import_model(torch.export.export(module, inputs), config)
    from .models import exported

    return import_model(exported(name, half), config)


def plan(name: str, target: str, folder: Path, end: float = float("inf")) -> dict[str, Any]:
    """Plan one model; lower the groups that no other process has taken.

    Parameters
    ----------
    end
        Of the system's monotonic clock, at which it stops with the groups that there are.

    Returns
    -------
    dict
        ``calls`` by group; ``groups``, the new ones, as the index has them; ``failed``, sentences.
    """
    spec = parse(target)
    found: dict[str, Any] = {"calls": {}, "groups": {}, "failed": []}
    start = time.perf_counter()
    try:
        _stop_at(end)
        model = imported(name, spec)
        with spec.tvm_target() as tvm_target, remembering(), recording():
            mod = Sequential(stages(FusionConfig())[:-1])(model.mod)
            for group in planned_groups(mod, tvm_target):
                found["calls"][group.key] = group.calls
                if _is_taken(folder, group.key):
                    continue
                try:
                    found["groups"][group.key] = write(group, spec, folder)
                except TimeoutError:
                    raise
                # guard: told in the index; the other groups are measured all the same
                except Exception as error:
                    found["failed"].append(f"{name}: {group.claim.group.title}: {reason(error)}")
    # guard: a model that cannot be exported or planned is a line of the index
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        found["failed"].append(f"{name}: {Path(place.filename).name}: {reason(error)}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return found | {"seconds": time.perf_counter() - start}


def _stop_at(end: float) -> None:
    """Raise in this process's main thread when a time is reached."""
    if end == float("inf"):
        return

    def stop(*_: Any) -> None:
        raise TimeoutError("no time was left to plan it")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(end - time.monotonic(), 1e-3))


def _is_taken(folder: Path, key: str) -> bool:
    """Whether another process has made the file of a group; if none has, it is made now."""
    try:
        (folder / GROUPS / f"{key}.json").open("x").close()
    except FileExistsError:
        return True
    return False


def write(group: PlannedGroup, spec: TargetSpec, folder: Path) -> dict[str, Any]:
    """Write a group and its lowered alternatives; returns its entry of the index."""
    pass

    kept = {g: f for g, f in group.mod.functions.items() if g.name_hint != MAIN}
    text = tvm.ir.save_json(tvm.IRModule(kept))
    (folder / GROUPS / f"{group.key}.json").write_text(text)
    tensors = (*group.claim.group.inputs, *group.claim.group.outputs)
    if sum(value.bytes for value in tensors) > MOST_BYTES:
        raise ValueError(f"its tensors are larger than {MOST_BYTES} bytes")
    bind_constants(group.claim, group.mod)
    ways = group.alternatives(claim_book(spec.tvm_target()))
    steps = {name: parts_of(way) for name, way in ways.items()}
    functions: dict[str, Any] = {}
    for name, mod in zip(steps, modules_of([*steps.values()]), strict=True):
        lowered, functions[name] = _lowered(mod, spec)
        (folder / LOWERED / f"{group.key}.{name}.json").write_text(tvm.ir.save_json(lowered))
    return {
        **about(group.claim, spec.device),
        "tolerance": tolerance([*steps.values()]),
        "functions": functions,
        "prices": {name: priced(way, spec.device) for name, way in ways.items()},
    }


def _lowered(mod: tvm.IRModule, spec: TargetSpec) -> tuple[tvm.IRModule, dict[str, Any]]:
    """Lower for the virtual machine; also tell what ``main`` takes: inputs, then weights."""
    with spec.tvm_target(), recording() as decisions:
        scheduled = Sequential([ScheduleKernels(FuseOperators)])(mod)
        broken = [d.sentence for d in decisions if d.verdict == "fallback"]
        if broken:
            raise RuntimeError(broken[0])
        lifted = lift_constants(scheduled, MIN_BYTES)
        lowered = Sequential([LowerToVM()])(lifted.mod)
    inputs = [[[int(d) for d in p.ty.shape.values], str(p.ty.dtype)] for p in mod[MAIN].params]
    weights = [list(drawn_weight(constant)) for constant in lifted.weights.get(MAIN, ())]
    return lowered, {"inputs": inputs, "weights": weights}


def _compile(folder: Path, index: dict[str, Any], processes: int, log: Log, seconds: float) -> None:
    """Compile what no library has, dear groups first; note where each function is."""
    lock = Lock()

    def note(line: str) -> None:
        """Keep what there is so far, whatever becomes of the rest."""
        with lock:
            log(line)
            for file, (library, name) in list(batches.placed.items()):
                key, _, way = file.stem.partition(".")
                index["groups"][key]["functions"][way] |= {"library": library, "function": name}
            if "functions" in line:
                (folder / INDEX).write_text(json.dumps(index))

    batches = Batches(
        folder, index["target"], note, processes=processes, size=BATCH, seconds=seconds
    )
    dear = sorted(index["groups"].items(), key=lambda one: -one[1]["prices"][FUSED]["us"])
    for key, way, function in functions_of(dict(dear)):
        if "library" not in function:
            batches.add(folder / LOWERED / f"{key}.{way}.json")
    batches.finish()
    index["failed"] += [f"{one.stem}: {reason}" for one, reason in batches.failed.items()]
    note(f"{len(batches.placed)} functions compiled, {len(batches.failed)} failed")


def functions_of(groups: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the group, the alternative and the facts of every function."""
    for key, group in groups.items():
        for way, function in group["functions"].items():
            yield key, way, function


def price_again(folder: Path, log: Log = print, cores: int | None = None) -> None:
    """Price the groups of a folder by this version's models of cost; nothing is compiled.

    The kernels are those of the machine that built the folder.

    Parameters
    ----------
    cores
        For which prices are, where they are not for those of that machine.
    """
    from .alternatives import alternatives_of, read_back

    path = folder / INDEX
    index = json.loads(path.read_text())
    host = replace(probe.host_cpu(), **index.get("host", {}))
    with ExitStack() as stack:
        stack.enter_context(patch.object(probe, "host_cpu", lambda: host))
        spec = parse(index["target"])
        target, device = spec.tvm_target(), spec.device
        device = device if cores is None else replace(device, cores=cores)
        for context in (target, remembering(), recording()):
            stack.enter_context(context)
        for key, group in index["groups"].items():
            if "library" not in group["functions"][FUSED]:
                continue
            mod = tvm.ir.load_json((folder / GROUPS / f"{key}.json").read_text())
            claim = read_back(mod, target)
            if claim is None:
                log(f"{group['title']}: {group['template']} refuses it now")
                continue
            ways = alternatives_of(claim, claim_book(target))
            group |= about(claim, device)
            found = {name: priced(way, device) for name, way in ways.items()}
            group["prices"] |= {n: p for n, p in found.items() if n in group["prices"]}
    path.write_text(json.dumps(index))
