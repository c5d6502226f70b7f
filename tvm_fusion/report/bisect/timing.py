"""Search for the groups that take longer than their operators one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

from ...core.contract.template import Claim, Refusal
from ...deploy.runtime.tensors import to_tensor
from ...ecg.graph import Graph
from ...ecg.work import at
from ...fusion.planning.plan import Plan
from ...measure.isolate import isolated
from ...measure.timing import random_array
from ...program.group import Group
from ...program.primitive import primitive_function
from ..planned import PlannedModel
from .delta import smallest_failing
from .execute import build, check_inputs, check_runnable, device_of, median_us, tensors
from .result import Bisection, Slowdown
from .search import Progress
from .variants import Variants

_FUNCTION = "main"


def find_slow(
    planned: PlannedModel,
    inputs: Mapping[str, np.ndarray],
    tolerance: float = 0.05,
    progress: Progress = lambda text: None,
) -> Bisection:
    """Find the groups whose fusion slows a model.

    A whole model's time would drown one group in noise, so each distinct group is timed by itself
    against its operators in kernels of their own, with the shapes that it has in the model. What
    is slower is measured twice. If no group is, and yet the model is slower fused than unfused,
    delta debugging over the model's time finds the groups. Then the model is timed without them.

    Parameters
    ----------
    planned
        From :func:`tvm_fusion.report.planned.plan_model`.
    inputs
        By name; they give symbolic dimensions their extents.
    tolerance
        Share of the operators' own time that fusing them may cost.

    Returns
    -------
    Bisection

    Raises
    ------
    UserError
        For inputs that the model does not take, and for a target that is not on this machine.
    Failed
        If a group or the model crashes: :func:`find_broken` says which.
    """
    check_runnable(planned.spec)
    extents = check_inputs(planned, inputs)
    variants = Variants(planned)
    distinct = list({c.group.key: c for c in reversed(variants.candidates)}.values())[::-1]
    slow: list[tuple[Claim, float, float, Literal["group", "model"]]] = []
    for claim in distinct:
        fused, unfused = _times(planned, variants, claim, extents)
        if fused > unfused * (1 + tolerance):
            again = _times(planned, variants, claim, extents)
            fused, unfused = min(fused, again[0]), min(unfused, again[1])
        progress(f"{claim.group.title}: {fused:.1f} us fused, {unfused:.1f} us unfused")
        if fused > unfused * (1 + tolerance):
            slow.append((claim, fused, unfused, "group"))
    times = _model_us(planned, variants, {"unfused": [], "fused": variants.candidates}, inputs)
    probes = 2 * len(distinct) + 2
    if not slow and times["fused"] > times["unfused"] * (1 + tolerance):

        def is_slow(claims: Sequence[Claim]) -> bool:
            nonlocal probes
            probes += 2
            both = _model_us(planned, variants, {"unfused": [], "fused": claims}, inputs)
            progress(f"{len(claims)} groups: {both['fused']:.0f} us, {both['unfused']:.0f} without")
            return both["fused"] > both["unfused"] * (1 + tolerance)

        for claim in smallest_failing(variants.candidates, is_slow):
            both = _model_us(planned, variants, {"unfused": [], "fused": [claim]}, inputs)
            slow.append((claim, both["fused"], both["unfused"], "model"))
    slow.sort(key=lambda found: (found[2] - found[1]) * len(variants.equal(found[0])))
    if slow:
        off = {equal for claim, *_ in slow for equal in variants.equal(claim)}
        rest = [claim for claim in variants.candidates if claim not in off]
        times |= _model_us(planned, variants, {"without_slow": rest}, inputs)
    return Bisection(
        model=planned.imported.source,
        target=planned.spec.text,
        tolerance=tolerance,
        candidates=len(variants.candidates),
        probes=probes + bool(slow),
        slow=tuple(
            Slowdown(variants.describe(claim), fused, unfused, measured)
            for claim, fused, unfused, measured in slow
        ),
        times_us=times,
    )


def _model_us(
    planned: PlannedModel,
    variants: Variants,
    wanted: Mapping[str, Sequence[Claim]],
    inputs: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """Time variants of the model in turns; each is given by what is fused."""

    def measure() -> dict[str, float]:
        args, device = tensors(planned, inputs), device_of(planned)
        machines = {name: build(planned, variants.fused(fused)) for name, fused in wanted.items()}
        return _in_turns(machines, planned.main, args, device)

    return isolated(measure)


def _in_turns(
    machines: Mapping[str, relax.VirtualMachine], function: str, args: list[Any], device: Any
) -> dict[str, float]:
    """Take the best of three medians: what else runs on the machine only ever adds time."""
    best = dict.fromkeys(machines, float("inf"))
    for _ in range(3):
        for name, machine in machines.items():
            best[name] = min(best[name], median_us(machine, function, args, device))
    return best


def _times(
    planned: PlannedModel, variants: Variants, claim: Claim, extents: Mapping[str, int]
) -> tuple[float, float]:
    """Microseconds of a group fused and of its operators apart, one after the other."""

    def measure() -> tuple[float, float]:
        model, graph = _region(planned, claim.group)
        again = claim.template.claim(Group(graph.operators), planned.spec.device)
        if isinstance(again, Refusal):
            raise RuntimeError(f"{claim.template.name} refuses its own group: {again.sentence}")
        args = _arguments(claim.group, model.mod[_FUNCTION], extents, device_of(planned))
        alone = tuple(variants.unfused(graph.operators))
        machines = {
            name: build(model, {graph.block: Plan(graph, claims, (), ())})
            for name, claims in (("fused", (again,)), ("unfused", alone))
        }
        times = _in_turns(machines, _FUNCTION, args, device_of(planned))
        return times["fused"], times["unfused"]

    return isolated(measure)


def _region(planned: PlannedModel, group: Group) -> tuple[PlannedModel, Graph]:
    """Make a model of one group, constants inside as in the model that it is from."""
    func = primitive_function(group).without_attr("Primitive")
    first = len(func.params) - len(group.inputs)  # behind the shape, if there is one
    params = func.params[first:]
    constants = {
        param: value.constant
        for param, value in zip(params, group.inputs, strict=True)
        if value.constant is not None
    }
    func = func.bind_params(constants).with_attr("global_symbol", _FUNCTION)
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {op.gvar: op.func for op in group.members}
    functions[ir.GlobalVar(_FUNCTION)] = func
    mod = relax.transform.Normalize()(tvm.IRModule(functions))
    block = mod[_FUNCTION].body.blocks[0]
    return replace(planned, mod=mod), Graph(mod, mod[_FUNCTION], block)


def _arguments(
    group: Group, func: relax.Function, extents: Mapping[str, int], device: Any
) -> list[Any]:
    """Draw a group's inputs, behind the extents that they do not show."""
    generator = np.random.default_rng(0)
    args: list[Any] = []
    for value in group.inputs:
        if value.constant is None:
            shape = [at(dim, extents) for dim in value.shape]
            args.append(to_tensor(random_array(generator, shape, value.dtype), device))
    first = func.params[0].ty
    if isinstance(first, relax.ShapeType):
        args.insert(0, tvm_ffi.Shape([at(symbol, extents) for symbol in first.values]))
    return args
