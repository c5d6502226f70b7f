"""Maxima that may lose NaN: those under softmax, where the row's sum has it again.

Passing NaN on costs three instructions of x86 instead of one for each element. Of a row that holds
NaN, ``exp(x - m)`` is NaN wherever ``x`` is, whatever the maximum ``m`` found; so is their sum, and
all that is divided by it.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx

from ...core.loops import find
from ..expressions import contains, loads_of, plain_maximum
from .combiner import Combiner
from .softmax import decaying, sums_decaying
from .stages import RowStages, Stage

_SWALLOWING = (tirx.Select, tirx.Max, tirx.Min, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ)


def with_plain_peaks(program: RowStages) -> RowStages:
    """Let row maxima that only softmax reads ignore NaN."""
    stages = tuple(_plain(program, stage) for stage in program.stages)
    return RowStages(program.func, stages, program.internal)


def _plain(program: RowStages, stage: Stage) -> Stage:
    combine = stage.combine
    if combine is None or len(combine.values) != 1 or not isinstance(combine.values[0], tirx.Max):
        return stage
    (peak,) = stage.targets
    if not program.is_internal(peak) or not _sum_has_nan(program, peak):
        return stage
    values = (plain_maximum(combine.results[0], combine.terms[0]),)
    return replace(stage, combine=Combiner(combine.results, combine.terms, values))


def _sum_has_nan(program: RowStages, peak: ir.Var) -> bool:
    """Whether all results that depend on a maximum are NaN where a sum over its softmax is."""
    decays = [
        call
        for call in decaying(program)
        if any(load.source.same_as(peak) for load in loads_of(call.args[0].b))
    ]
    from_peak: list[ir.Var] = [peak]
    from_sum: list[ir.Var] = []
    for stage in program.stages:
        reads = [load.source for load in stage.loads]
        if any(contains(from_sum, buffer) for buffer in reads):
            written = (*stage.values, *(stage.combine.values if stage.combine else ()))
            if any(find(value, kind) for value in written for kind in _SWALLOWING):
                return False
            from_sum += stage.targets
        elif any(contains(from_peak, buffer) for buffer in reads):
            if any(not program.is_internal(target) for target in stage.targets):
                return False
            is_sum = bool(decays) and sums_decaying(program, stage)
            (from_sum if is_sum else from_peak).extend(stage.targets)
    return bool(from_sum)
