"""From groups in the IR to kernels: each distinct group is emitted once, by its template."""

from collections.abc import Callable, Container
from dataclasses import replace

import tvm
from tvm import ir, relax, tirx
from tvm.target import Target

from ...core.contract.kernel_info import Describe, KernelInfo
from ...core.contract.template import TEMPLATE, Ban, Claim, Emission, Kernel, Refusal, Slot
from ...core.contract.templates import template
from ...core.contract.tuned import TUNED, Lookup, Tuned, untuned
from ...core.decisions import Decision, record
from ...core.progress import steps
from ...core.tir.loops import find
from ...device import Device, device_of
from ...ecg.graph import Graph
from ...program.group import Group

# Why the machine code of kernels is unfit, a clause; None where it is not.
Inspect = Callable[[Emission, Target], str | None]
MOST_CONFIGS = 8  # that are tried where the default one's code is unfit: each takes a compilation


def is_group(func: ir.BaseFunc) -> bool:
    """Whether a function is a group that a template of this package claimed."""
    return isinstance(func, relax.Function) and bool(func.attrs) and TEMPLATE in func.attrs


def group_of(mod: tvm.IRModule, func: relax.Function) -> Group:
    """Read a group back from its Primitive function."""
    return Group(Graph(mod, func, func.body.blocks[0]).operators)


def emit_groups(
    mod: tvm.IRModule,
    target: Target,
    tuned: Lookup = untuned,
    describe: Describe | None = None,
    inspect: Inspect | None = None,
) -> tuple[dict[ir.GlobalVar, Emission], dict[ir.GlobalVar, Ban]]:
    """Let templates make the kernels of all groups of a module.

    Parameters
    ----------
    mod
        With Primitive functions that carry their template's name.
    tuned
        Gives the configuration that was measured to be the fastest for a claim, or ``None``. One
        that cannot be emitted is recorded and the default taken.
    describe
        Describes the kernels of a claim for the artifact.
    inspect
        Tells why a configuration's machine code is unfit; others are tried then.

    Returns
    -------
    dict of GlobalVar to (str, Hashable)
        Groups whose claim was broken; the reasons are recorded as decisions.
    """
    device = device_of(target)
    emitted: dict[ir.GlobalVar, Emission] = {}
    broken: dict[ir.GlobalVar, Ban] = {}
    groups = [(gvar, func) for gvar, func in mod.functions.items() if is_group(func)]
    for gvar, func in steps("scheduling kernels", groups):
        group = group_of(mod, func)
        name = str(func.attrs[TEMPLATE])
        try:
            claimant = template(name, target)
            claim = claimant.claim(group, device)
            if isinstance(claim, Refusal):
                raise RuntimeError(f"it refuses what was planned ({claim.sentence})")
            configured = _emit_tuned(gvar.name_hint, claim, device, target, tuned)
            emission, chosen = configured or (claimant.emit(claim, target), None)
            if inspect is not None and (unfit := inspect(emission, target)) is not None:
                emission = _emit_other(gvar.name_hint, claim, device, target, inspect, unfit)
            emission = _without_unread_constants(emission, group)
            if (remark := claimant.remark(claim, device)) is not None:
                record(replace(remark, producer=gvar.name_hint))
        # guard: recorded; the region is planned again without this claim
        except Exception as error:
            broken[gvar] = (name, group.key)
            record(_broken(gvar.name_hint, name, error))
            continue
        if describe is not None:
            emission = replace(emission, info=_measured(describe(claim, device), chosen))
        emitted[gvar] = emission
    return emitted, broken


def _emit_tuned(
    name: str, claim: Claim, device: Device, target: Target, tuned: Lookup
) -> tuple[Emission, Tuned] | None:
    """Make kernels of the configuration that was measured; ``None`` if none was, or it is unfit."""
    found = tuned(claim, device)
    if found is None:
        return None
    if isinstance(found, Refusal):
        record(Decision(name, "", "fallback", found.code, found.sentence))
        return None
    template = claim.template
    try:
        configured = template.configure(claim, found.config, device)
        if isinstance(configured, Refusal):
            raise ValueError(configured.sentence)
        emission = template.emit(configured, target)
    # guard: recorded; a record must not stop a compilation that passes without it
    except Exception as error:
        sentence = f"The configuration of {found.source} is not used: {_first_line(error)}"
        record(Decision(name, "", "fallback", "tuned_config_unfit", sentence))
        return None
    sentence = f"{found.gain:.3f} times as fast as the default by {found.source}{found.note}."
    record(Decision(name, "", "accepted", TUNED, sentence, measured_us=found.us))
    return emission, found


def _emit_other(
    name: str, claim: Claim, device: Device, target: Target, inspect: Inspect, unfit: str
) -> Emission:
    """Make kernels of the next best configuration whose machine code is fit.

    Where there is none among a few, the default's: what is wrong with it is recorded when the
    whole is built.
    """
    template = claim.template
    estimates = dict(enumerate(template.estimates(claim, device)))
    order = sorted(estimates, key=lambda number: estimates[number][1])
    configs = [estimates[number][0] for number in order] or [*template.configs(claim, device)]
    for config in configs[:MOST_CONFIGS]:
        configured = template.configure(claim, config, device)
        if isinstance(configured, Refusal):
            continue
        emission = template.emit(configured, target)
        if inspect(emission, target) is None:
            sentence = f"The default configuration {unfit}, {dict(config)} does not: it is taken."
            record(Decision(name, "", "fallback", "config_unfit", sentence))
            return emission
    return template.emit(claim, target)


def _measured(info: KernelInfo, chosen: Tuned | None) -> KernelInfo:
    """Replace the default configuration and its price by those of a record, if there is one."""
    if chosen is None:
        return info
    config = dict(chosen.config)
    return replace(info, config=config, us=chosen.us, source="measured", record=chosen.source)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _without_unread_constants(emission: Emission, group: Group) -> Emission:
    """Drop parameters for constants whose elements kernels know without reading them.

    Nothing else passes such a constant, so it is not stored either.
    """
    known = {
        Slot("input", i) for i, value in enumerate(group.inputs) if value.closed_form is not None
    }
    if known.isdisjoint(slot for kernel in emission.kernels for slot in kernel.reads):
        return emission
    return replace(emission, kernels=tuple(_without_unread(k, known) for k in emission.kernels))


def _without_unread(kernel: Kernel, known: Container[Slot]) -> Kernel:
    # TVM's undefined_vars refuses expressions that bind a variable twice, as copies of one do.
    used = set(find(kernel.func.body, ir.Var))
    reads, params = [], []
    for slot, param in zip(kernel.reads, kernel.func.params, strict=False):
        if slot not in known or param in used:
            reads.append(slot)
            params.append(param)
    if len(reads) == len(kernel.reads):
        return kernel
    func = kernel.func
    params += func.params[len(kernel.reads) :]
    return Kernel(
        tirx.PrimFunc(params, func.body, func.ret_type, func.attrs), tuple(reads), kernel.writes
    )


def _broken(group: str, name: str, error: Exception) -> Decision:
    reason = _first_line(error)
    return Decision(
        group,
        "",
        "fallback",
        "claim_broken",
        f"{name} claimed this group and could not emit it: {type(error).__name__}: {reason}",
    )
