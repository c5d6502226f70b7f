"""What a CPU's vectors pay for elements that do not lie side by side in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm import ir

from ..fusion.expressions import loads, variables
from ..fusion.program import Axis, Stage
from .address import intrinsic, offset, stride
from .estimate import points, terms
from .loops import constant, find

# In operations of all vector units, which is how claims count: measured with transposes of 37,000
# to 300,000 elements on two AVX-512 cores.
GATHER, SCATTER = 16, 32
BRANCH = 48  # where lanes part ways, they are computed one by one

Access = tuple[ir.Var, Sequence[ir.Expr]]


def apart(stage: Stage, candidates: Sequence[Axis]) -> int:
    """Count the operations that a stage's gathers and scatters are worth.

    Parameters
    ----------
    stage : Stage
        Part of a program.
    candidates : sequence of Axis
        Along one of these run the vectors, whichever costs least; without any there are none.

    Returns
    -------
    int
        For all points and terms.
    """
    axes = [a.var for a in (*stage.axes, *stage.reduce)]
    reads = [(x.source, x.indices) for value in stage.values for x in loads(value)]
    reads = [x for x in reads if x[0] not in stage.targets]
    writes = list(zip(stage.targets, stage.indices, strict=True))
    several = [a.var for a in candidates if constant(a.extent) != 1]
    gathers = points(stage) * terms(stage) * GATHER
    scatters = points(stage) * SCATTER
    costs = (
        gathers * _apart(reads, axis, axes) + scatters * _apart(writes, axis, axes)
        for axis in several
    )
    return min(costs, default=0)


def branches(stage: Stage, candidates: Sequence[Axis]) -> int:
    """Count the operations that choices are worth on which lanes do not agree.

    Parameters
    ----------
    stage : Stage
        Part of a program whose schedule does not cut loops at choices.
    candidates : sequence of Axis
        Along one of these run the vectors, whichever costs least.

    Returns
    -------
    int
        For all points and terms.
    """
    calls = [call for value in stage.values for call in find(value, ir.Call)]
    choices = [call.args[0] for call in calls if intrinsic(call) == "if_then_else"]
    several = [a.var for a in candidates if constant(a.extent) != 1]
    parting = (sum(axis in variables(c) for c in choices) for axis in several)
    return points(stage) * terms(stage) * BRANCH * min(parting, default=0)


def _apart(accesses: Iterable[Access], axis: ir.Var, axes: Sequence[ir.Var]) -> int:
    return sum(not _is_short(buffer, where, axis, axes) for buffer, where in accesses)


def _is_short(
    buffer: ir.Var, indices: Sequence[ir.Expr], axis: ir.Var, axes: Sequence[ir.Var]
) -> bool:
    if not any(axis in variables(i) for i in indices):
        return True
    step = stride(offset(buffer, indices), axis, axes)
    return step is not None and constant(step) in (0, 1)
