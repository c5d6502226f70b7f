"""The cost of strided accesses and branches in a CPU's vectors: gathers, scatters, masks."""

from collections.abc import Iterable, Sequence

from tvm import ir

from ...core.tir.expressions import call_name, loads, variables
from ...core.tir.loops import constant, find
from ...program.stage import Axis, Stage
from .address import known_step
from .estimate import points, terms

# In operations of all vector units, which is how claims count: measured with transposes of 37,000
# to 300,000 elements on two AVX-512 cores.
GATHER, SCATTER = 16, 32
BRANCH = 48  # divergent lanes are computed one by one

Access = tuple[ir.Var, Sequence[ir.Expr]]


def strided_access_cost(stage: Stage, candidates: Sequence[Axis], branches: bool = False) -> int:
    """Count the operations that a stage's gathers, scatters and branches cost.

    Parameters
    ----------
    candidates
        Vectors run along one of these, that with the fewest strided accesses; without any there are
        no vectors.
    branches
        Whether the schedule keeps branches in its loops, on which lanes may diverge.

    Returns
    -------
    int
        For all points and terms.
    """
    axes = [a.var for a in (*stage.axes, *stage.reduce)]
    reads = [(x.source, x.indices) for value in stage.values for x in loads(value)]
    reads = [x for x in reads if x[0] not in stage.targets]
    writes = list(zip(stage.targets, stage.indices, strict=True))
    calls = [call for value in stage.values for call in find(value, ir.Call)] if branches else []
    choices = [call.args[0] for call in calls if call_name(call) == "if_then_else"]
    evaluated = points(stage) * terms(stage)

    def costs(axis: ir.Var) -> tuple[int, int]:
        gathers, scatters = (_strided(accesses, axis, axes) for accesses in (reads, writes))
        divergent = sum(axis in variables(choice) for choice in choices)
        strides = evaluated * GATHER * gathers + points(stage) * SCATTER * scatters
        return strides, evaluated * BRANCH * divergent

    return sum(min((costs(a.var) for a in candidates if constant(a.extent) != 1), default=(0, 0)))


def _strided(accesses: Iterable[Access], axis: ir.Var, axes: Sequence[ir.Var]) -> int:
    return sum(not _is_short(buffer, where, axis, axes) for buffer, where in accesses)


def _is_short(
    buffer: ir.Var, indices: Sequence[ir.Expr], axis: ir.Var, axes: Sequence[ir.Var]
) -> bool:
    if not any(axis in variables(i) for i in indices):
        return True
    return known_step(buffer, indices, axis, axes) in (0, 1)
