"""The cost of strided accesses and branches in a CPU's vectors: gathers, scatters, masks."""

from collections.abc import Iterable, Sequence

from tvm import ir, sym, tirx

from ...core.tir.expressions import call_name, loads, substitute, variables
from ...core.tir.loops import constant, find, index
from ...program.lane_conditions import decide_for_lanes
from ...program.stage import Axis, Stage
from .address import known_step
from .estimate import points, terms

# In operations of all vector units, which is how claims count: measured with transposes of 37,000
# to 300,000 elements on two AVX-512 cores.
GATHER, SCATTER = 16, 32
BRANCH = 48  # divergent lanes are computed one by one

Access = tuple[ir.Var, Sequence[ir.Expr]]


def strided_access_cost(
    stage: Stage, candidates: Sequence[Axis], branches: bool = False, width: int = 1
) -> int:
    """Count the operations that a stage's gathers, scatters and branches cost.

    Parameters
    ----------
    candidates
        Vectors run along one of these, that with the fewest strided accesses; without any there are
        no vectors.
    branches
        Whether the schedule keeps branches in its loops, on which lanes may diverge.
    width
        Elements of a vector: its lanes do not diverge on a boundary that vectors end at.

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

    def costs(along: Axis) -> tuple[int, int]:
        axis = along.var
        gathers, scatters = (_strided(accesses, axis, axes) for accesses in (reads, writes))
        divergent = sum(_diverges(choice, along, width) for choice in choices)
        strides = evaluated * GATHER * gathers + points(stage) * SCATTER * scatters
        return strides, evaluated * BRANCH * divergent

    return sum(min((costs(a) for a in candidates if constant(a.extent) != 1), default=(0, 0)))


def _diverges(choice: ir.Expr, axis: Axis, width: int) -> bool:
    """Whether the lanes of a vector along an axis may choose differently."""
    if axis.var not in variables(choice):
        return False
    if width == 1 or axis.size is None or axis.size % width:
        return True
    first, lane = (tirx.Var(name, "int64") for name in ("first", "lane"))
    choice = substitute(choice, {axis.var: first * width + lane})
    decided = decide_for_lanes(choice, [Axis(lane, index(width))], sym.Analyzer())
    return lane in variables(decided)


def _strided(accesses: Iterable[Access], axis: ir.Var, axes: Sequence[ir.Var]) -> int:
    return sum(not _is_short(buffer, where, axis, axes) for buffer, where in accesses)


def _is_short(
    buffer: ir.Var, indices: Sequence[ir.Expr], axis: ir.Var, axes: Sequence[ir.Var]
) -> bool:
    if not any(axis in variables(i) for i in indices):
        return True
    return known_step(buffer, indices, axis, axes) in (0, 1)
