"""Groups of models of the zoo, planned for an AMD GPU in float16, counted and priced."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tvm.target import Target

from benchmarks import zoo
from benchmarks.prices.alternatives import alternatives_of, claimed, parts_of
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.contract.template import TEMPLATE, Claim, Emission
from tvm_fusion.core.decisions import recording
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import Device, TargetSpec
from tvm_fusion.fusion.claims import ClaimBook, claim_book, remembering
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.database.key import Key
from tvm_fusion.fusion.features import NAMES, features_of
from tvm_fusion.fusion.profile import ProfiledGroup
from tvm_fusion.measure.alternative_modules import modules_of
from tvm_fusion.program.group import Group
from tvm_fusion.report.planned import plan_model
from tvm_fusion.schedule.stage.emit import group_of
from tvm_fusion.tuning.tasks import title_of

from .count import Counts, counts_of
from .model import Price, memory_us, price
from .record import CLOCKS

MOST_BYTES = 1 << 28  # of a group's tensors: a few blocks of a kernel run, on all of its memory


def samples(model: str, arch: str, known: set[Key]) -> Iterator[dict[str, Any]]:
    """Count the groups of a model that are not known yet, and other ways to compute them.

    Yields
    ------
    dict
        ``model``, ``title``, ``template``, ``calls`` (0 of what the plan does not have), ``us``,
        ``roofline_us``, the features, ``claimed`` (registers of a thread, LDS of a block), and
        ``kernels``: of each what :func:`row_of` tells; or ``error``, the reason.
    """
    planned = plan_model(zoo.load(model, 0), f"rocm:{arch}", FusionConfig(precision="fp16"))
    spec = planned.spec
    cost = CostModel(spec.device)
    with toolchain(spec), spec.tvm_target() as target, remembering(), recording():
        claims = [claim for plan in planned.plans.values() for claim in plan.claims]
        calls = Counter(_key(claim, spec.device) for claim in claims)
        for steps in _ways(claims, claim_book(target)):
            for claim in _read_back(steps, target):
                key = _key(claim, spec.device)
                if key in known:
                    continue
                known.add(key)
                head = {"model": model, "title": title_of(claim)[:80], "calls": calls[key]}
                if sum(v.bytes for v in (*claim.group.inputs, *claim.group.outputs)) > MOST_BYTES:
                    yield head | {"error": "too large"}
                    continue
                try:
                    yield head | _sampled(claim, spec, cost)
                except Exception as error:  # guard: the reason is the row's result
                    yield head | {"error": f"{type(error).__name__}: {error}"[:300]}


def _key(claim: Claim, device: Device) -> Key:
    return Key.of(claim.group, claim.template.name, device)


def _ways(claims: Sequence[Claim], book: ClaimBook) -> Iterator[Sequence[Claim | ProfiledGroup]]:
    """Yield the groups of a plan, those that feed them as one with them, and their parts."""
    owners = {op: claim for claim in claims for op in claim.group.members}
    for claim in claims:
        yield (claim,)
        before = {owners.get(v.producer) for v in claim.group.inputs if v.producer is not None}
        for others in (*([one] for one in before), before):
            members = {op for one in others if one is not None for op in one.group.members}
            whole = sorted({*members, *claim.group.members}, key=lambda op: op.index)
            joined = book.claim(Group(tuple(whole))) if members else None
            if isinstance(joined, Claim) and joined.template.name == claim.template.name:
                yield (joined,)
        yield from list(alternatives_of(claim, book).values())[1:]


def _read_back(steps: Sequence[Claim | ProfiledGroup], target: Target) -> Iterator[Claim]:
    """Write an alternative as a module and read it back: kernels are made of such functions."""
    (mod,) = modules_of([parts_of(steps)])
    for func in mod.functions.values():
        if func.attrs and func.attrs.get(TEMPLATE):
            claim = claimed(group_of(mod, func), str(func.attrs[TEMPLATE]), target)
            if claim is not None and not claim.group.scalars:
                yield claim
                yield from () if claim.laid_out is None else (claim.laid_out,)


def _sampled(claim: Claim, spec: TargetSpec, cost: CostModel) -> dict[str, Any]:
    target = spec.tvm_target()
    emission = claim.template.emit(claim, target)
    found = list(counts_of(emission, target))
    prices = _prices(claim, emission, found, spec.device, cost)
    features = features_of(claim, cost.cache_bytes, cost.units)
    return {
        "template": claim.template.name,
        "us": round(sum(one.us for one in prices), 3),
        "roofline_us": round(cost.roofline([claim]), 3),
        "claimed": [claim.registers, claim.shared_bytes],
        "kernels": [row_of(*one) for one in zip(found, prices, strict=True)],
        **{n: float(f"{x:.5g}") for n, x in zip(NAMES, features.row, strict=True)},
    }


def _prices(
    claim: Claim,
    emission: Emission,
    counts: Sequence[Counts],
    device: Device,
    cost: CostModel,
) -> list[Price]:
    """Price kernels; a claim's traffic is shared among them by the sizes of their operands."""
    features = features_of(claim, cost.cache_bytes, cost.units)
    cold, cached = features.weight_kib + features.other_kib, features.cached_kib
    every = sum(one.bytes for one in counts)
    found = []
    for one in counts:
        share = 1024 * one.bytes / every if every else 0.0
        memory = memory_us(one, device, cold * share, cached * share)
        found.append(price(one, device, memory))
    return found


def row_of(counts: Counts, priced: Price) -> list[Any]:
    """List a kernel's counts, as :data:`.record.COLUMNS` names them."""
    span, code = counts.span, counts.code
    clocks = [round(span.clocks[kind]) for kind in CLOCKS]
    lds = [round(counts.waves * x) for x in (span.lds_clocks, span.lds_ideal)]
    return [
        *(counts.blocks, counts.waves, code.registers, code.scalar_registers, code.shared_bytes),
        *(code.spilled, *clocks, *lds, round(counts.waves * span.bytes), round(span.narrow_loads)),
        *(float(f"{priced.waves:.3g}"), float(f"{priced.us:.3g}"), priced.bound),
    ]
