"""Search for the groups that take longer than their operators one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from ...deploy.tensors import to_tensor
from ...ecg.graph import Graph
from ...ecg.work import at
from ...fusion.group import Group
from ...fusion.plan import Plan
from ...fusion.primitive import primitive_function
from ...schedule.template import Claim, Refusal
from ..planned import PlannedModel, Plans
from .execute import build, check_inputs, check_runnable, device_of, median_us, tensors
from .isolate import isolated
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
    is slower is measured twice. Then the model is timed without the groups that were found.

    Parameters
    ----------
    planned : PlannedModel
        From :func:`tvm_fusion.report.planned.plan_model`.
    inputs : mapping of str to numpy.ndarray
        By name; they give symbolic dimensions their extents.
    tolerance : float
        Share of the operators' own time that fusing them may cost.
    progress : callable
        Told what was measured.

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
    check_runnable(planned)
    extents = check_inputs(planned, inputs)
    variants = Variants(planned)
    distinct = list({c.group.key: c for c in reversed(variants.candidates)}.values())[::-1]
    slow = []
    for claim in distinct:
        fused, apart = _times(planned, variants, claim, extents)
        if fused > apart * (1 + tolerance):
            again = _times(planned, variants, claim, extents)
            fused, apart = min(fused, again[0]), min(apart, again[1])
        progress(f"{claim.group.title}: {fused:.1f} us fused, {apart:.1f} us apart")
        if fused > apart * (1 + tolerance):
            slow.append(Slowdown(variants.describe(claim), fused, apart))
    slow.sort(key=lambda s: (s.apart_us - s.fused_us) * s.group.instances)
    titles = {(s.group.template, s.group.members) for s in slow}
    guilty = [c for c in distinct if (c.template.name, variants.describe(c).members) in titles]
    off = {equal for claim in guilty for equal in variants.equal(claim)}
    wanted = {"unfused": [], "fused": variants.candidates}
    if off:
        wanted["without_slow"] = [c for c in variants.candidates if c not in off]
    times = {
        name: _model_us(planned, variants.fused(claims), inputs) for name, claims in wanted.items()
    }
    return Bisection(
        model=planned.imported.source,
        target=planned.spec.text,
        tolerance=tolerance,
        candidates=len(variants.candidates),
        probes=2 * len(distinct) + len(times),
        slow=tuple(slow),
        times_us=times,
    )


def _model_us(planned: PlannedModel, plans: Plans, inputs: Mapping[str, np.ndarray]) -> float:
    def measure() -> float:
        machine = build(planned, plans)
        return median_us(machine, planned.main, tensors(planned, inputs), device_of(planned))

    return isolated(measure)


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
        alone = tuple(variants.apart(graph.operators))
        machines = [
            build(model, {graph.block: Plan(graph, claims, (), ())}) for claims in ((again,), alone)
        ]
        fused, apart = (median_us(m, _FUNCTION, args, device_of(planned)) for m in machines)
        return fused, apart

    return isolated(measure)


def _region(planned: PlannedModel, group: Group) -> tuple[PlannedModel, Graph]:
    """Make a model of one group, constants inside as in the model that it is from."""
    func = primitive_function(group).without_attr("Primitive")
    constants = {
        param: value.constant
        for param, value in zip(func.params, group.inputs, strict=False)
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
    """Draw a group's inputs; scalars are the extents that they stand for."""
    generator = np.random.default_rng(0)
    args: list[Any] = []
    for value in group.inputs:
        if value.constant is None:
            shape = [at(dim, extents) for dim in value.shape]
            args.append(to_tensor(_random(generator, shape, value.dtype), device))
    return args + [at(scalar, extents) for scalar in group.scalars]


def _random(generator: np.random.Generator, shape: list[int], dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind in "iub":  # indices: zero is within every range
        return np.zeros(shape, kind)
    return generator.standard_normal(shape).astype(kind)
