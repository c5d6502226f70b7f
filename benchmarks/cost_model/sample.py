"""Times of every distinct group of a model, on one thread, against what their claims say."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import tvm
from tvm.ir.transform import Sequential

from benchmarks import zoo
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.contract.template import TEMPLATE, Claim, Refusal
from tvm_fusion.core.contract.templates import template
from tvm_fusion.device import TargetSpec, parse
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion.claims import remembering
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.database.key import Key
from tvm_fusion.fusion.features import NAMES, features_of
from tvm_fusion.measure.alternatives import timed
from tvm_fusion.measure.isolate import Failed, isolated
from tvm_fusion.measure.timing import Effort
from tvm_fusion.pipeline import stages
from tvm_fusion.schedule.stage.emit import group_of
from tvm_fusion.tuning.tasks import alone, calls_of, title_of

EFFORT = Effort(seconds=0.02, fewest=3, most=12, hopeless=float("inf"), timeout=120.0)


def distinct(
    planned: tvm.IRModule, spec: TargetSpec
) -> Iterator[tuple[Claim, Key, int, tvm.IRModule]]:
    """Yield each distinct group of a planned model, its key, its calls and a module of it alone."""
    target, device = spec.tvm_target(), spec.device
    found: dict[Key, tuple[Claim, Key, int, tvm.IRModule]] = {}
    for gvar, call, calls in calls_of(planned):
        func = planned[gvar]
        with target:
            group = group_of(planned, func)
            claim = template(str(func.attrs[TEMPLATE]), target).claim(group, device)
        if isinstance(claim, Refusal):
            continue
        key = Key.of(group, claim.template.name, device)
        if key in found:
            calls += found[key][2]
        found[key] = claim, key, calls, alone(planned, gvar, call)
    yield from found.values()


def samples(name: str, known: set[Key]) -> Iterator[dict[str, Any]]:
    """Time the groups of a model of the zoo that are not known yet.

    Processor time of the calling thread: what else runs on the machine is not in it.

    Yields
    ------
    dict
        ``model``, ``title``, ``template``, ``calls``, ``us``, ``roofline_us``, and the features.
    """
    spec = parse("cpu")
    with spec.tvm_target(), remembering():
        mod = Sequential(stages(FusionConfig())[:-1])(import_model(zoo.load(name, 0)).mod)
    cost = CostModel(spec.device)
    for claim, key, calls, module in distinct(mod, spec):
        if key in known:
            continue
        known.add(key)
        try:
            (us,) = isolated(
                partial(timed, [module], spec, effort=EFFORT, clock=time.thread_time),
                EFFORT.timeout,
            )
        except Failed as reason:
            yield {"model": name, "title": title_of(claim), "error": str(reason)}
            continue
        features = features_of(claim, cost.cache_bytes, cost.units)
        yield {
            "model": name,
            "title": title_of(claim)[:80],
            "template": claim.template.name,
            "calls": calls,
            "us": round(us, 2),
            "roofline_us": round(cost.roofline([claim]), 2),
            **{n: float(f"{x:.5g}") for n, x in zip(NAMES, features.row, strict=True)},
        }
