"""Reductions over groups of channels where a channel block holds several groups.

Group norms of few channels per group reduce parts of a vector of channels. Here a row is a block,
the sums of its channels are taken first, lane by lane, then those of each group, which every lane
of the group reads:

    rows n, g                          rows n, block
      s = sum x[c in g, y, x]            c[lane] = sum x[block, y, x, lane]
                                         s[group] = sum c[lanes of the group]
                                         b[lane] = s[lane // size]
      y[c in g, y, x] = f(x, s)          y[block, y, x, lane] = f(x, b[lane])
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load, map_loads, substitute, variables
from ....core.tir.loops import index
from ....program.domain import Domain
from ....program.program import Program
from ....program.stage import Axis, Stage

_INT64 = ir.PrimType("int64")


@dataclass(frozen=True)
class _Groups:
    """Row ``position`` counts groups of ``size`` channels; ``lanes`` make a block."""

    position: int
    size: int
    lanes: int

    @property
    def count(self) -> int:
        """Groups of a block."""
        return self.lanes // self.size


def with_group_lanes(program: Program) -> Program | None:
    """Make blocks the rows of a program whose rows are groups of a part of a block.

    Parameters
    ----------
    program
        Some of its inputs or outputs are in blocked layouts.

    Returns
    -------
    Program or None
        None where that is not its form.
    """
    groups = _groups(program)
    if groups is None:
        return None
    internal = set(program.internal)
    spread: dict[ir.Var, ir.Var] = {}  # of a sum: what lanes read of it
    stages: list[Stage] = []
    for stage in program.stages:
        partner = _partner(stage, groups, program)
        if partner is None:
            return None
        if stage.is_map:
            if stage.targets[0] in internal:
                return None
            stages.append(_map(stage, partner, groups, program.row_rank, spread))
        elif (
            _is_sum(stage) and len(stage.axes) == program.row_rank and stage.targets[0] in internal
        ):
            stages += _sums(stage, partner, groups, program.row_rank, spread)
        else:
            return None
    return replace(program, stages=tuple(stages))


def _groups(program: Program) -> _Groups | None:
    """Find the row that is divided to find a block."""
    outside = {*program.inputs, *program.outputs}
    for stage in program.stages:
        for found in (x for x in stage.loads if x.source in outside and len(x.indices)):
            lanes = found.source.ty.shape[-1]
            for position, axis in enumerate(stage.axes[: program.row_rank]):
                for other in (*stage.axes[program.row_rank :], *stage.reduce):
                    size = other.size
                    if (
                        isinstance(lanes, tirx.IntImm)
                        and size is not None
                        and axis.size is not None
                        and 1 < size < int(lanes)
                        and int(lanes) % size == 0
                        and axis.size * size % int(lanes) == 0
                        and variables(found.indices[-1]) == {axis.var, other.var}
                    ):
                        groups = _Groups(position, size, int(lanes))
                        if _is_lane(stage, found.indices[-1], axis, other, groups):
                            return groups
    return None


def _is_lane(stage: Stage, place: ir.Expr, row: Axis, other: Axis, groups: _Groups) -> bool:
    expected = tirx.floormod(row.var, index(groups.count)) * index(groups.size) + other.var
    return Domain((*stage.axes, *stage.reduce)).equal(place, expected)


def _partner(stage: Stage, groups: _Groups, program: Program) -> Axis | None:
    """Find the axis of a stage that counts the channels of a group."""
    row = stage.axes[groups.position]
    accesses = [x.indices for x in stage.loads if x.source in program.inputs and len(x.indices)]
    accesses += [i for t, i in zip(stage.targets, stage.indices, strict=True) if len(i)]
    for indices in accesses:
        for other in (*stage.axes[program.row_rank :], *stage.reduce):
            if (
                other.size == groups.size
                and variables(indices[-1]) == {row.var, other.var}
                and _is_lane(stage, indices[-1], row, other, groups)
            ):
                return other
    return None


def _is_sum(stage: Stage) -> bool:
    if len(stage.targets) != 1 or stage.init is None:
        return False
    (value,), (start,) = stage.values, stage.init
    if not isinstance(value, tirx.Add) or not isinstance(start, tirx.FloatImm) or start.value:
        return False
    return isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(stage.targets[0])


def _rows(stage: Stage, groups: _Groups, rows: int) -> list[Axis]:
    """Make the new row axes of a stage."""
    axes = [Axis(ir.Var(a.var.name, _INT64), a.extent) for a in stage.axes[:rows]]
    old = stage.axes[groups.position]
    blocks = (old.size or 0) // groups.count
    axes[groups.position] = Axis(ir.Var("block", _INT64), index(blocks))
    return axes


def _places(
    stage: Stage, rows: Sequence[Axis], lane: Axis, partner: Axis, groups: _Groups
) -> dict[ir.Var, ir.Expr]:
    """Tell old axes by the new ones."""
    places: dict[ir.Var, ir.Expr] = {
        old.var: new.var for old, new in zip(stage.axes, rows, strict=False)
    }
    group = tirx.floordiv(lane.var, index(groups.size))
    row = stage.axes[groups.position].var
    places[row] = rows[groups.position].var * index(groups.count) + group
    places[partner.var] = tirx.floormod(lane.var, index(groups.size))
    return places


def _lane(groups: _Groups) -> Axis:
    return Axis(ir.Var("lane", _INT64), index(groups.lanes))


def _map(
    stage: Stage, partner: Axis, groups: _Groups, rows: int, spread: dict[ir.Var, ir.Var]
) -> Stage:
    first, lane = _rows(stage, groups, rows), _lane(groups)
    inner = [a for a in stage.axes[rows:] if a is not partner]
    axes = (*first, *inner, lane)
    change = _Change(axes, _places(stage, first, lane, partner, groups), first, lane, spread)
    indices = tuple(tuple(change(i) for i in where) for where in stage.indices)
    values = tuple(change(v) for v in stage.values)
    return replace(stage, axes=axes, indices=indices, values=values, solution=None)


def _sums(
    stage: Stage, partner: Axis, groups: _Groups, rows: int, spread: dict[ir.Var, ir.Var]
) -> list[Stage]:
    """Sum channels, then groups, and give every lane the sum of its group."""
    (target,), (start,) = stage.targets, stage.init or ()
    dtype, name = str(target.ty.dtype), target.name
    first, lane = _rows(stage, groups, rows), _lane(groups)
    reduce = tuple(a for a in stage.reduce if a is not partner)
    extents = [a.extent for a in first]
    channels = declare([*extents, lane.extent], dtype, f"{name}_channels")
    places = _places(stage, first, lane, partner, groups)
    change = _Change((*first, lane, *reduce), places, first, lane, spread)
    where = tuple(a.var for a in (*first, lane))
    one = Stage(
        f"{name}_channels",
        (*first, lane),
        reduce,
        (channels,),
        (where,),
        (load(channels, where) + change(stage.values[0].b),),
        (start,),
        operator=stage.operator,
    )
    first = _rows(stage, groups, rows)
    group = Axis(ir.Var("group", _INT64), index(groups.count))
    member = Axis(ir.Var("member", _INT64), index(groups.size))
    whole = declare([*extents, group.extent], dtype, name)
    at = [a.var for a in first]
    where = (*at, group.var)
    term = load(channels, [*at, group.var * index(groups.size) + member.var])
    two = Stage(
        name,
        (*first, group),
        (member,),
        (whole,),
        (where,),
        (load(whole, where) + term,),
        (start,),
        operator=stage.operator,
    )
    first, lane = _rows(stage, groups, rows), _lane(groups)
    lanes = declare([*extents, lane.extent], dtype, f"{name}_lanes")
    at = [a.var for a in first]
    value = load(whole, [*at, tirx.floordiv(lane.var, index(groups.size))])
    three = Stage(
        f"{name}_lanes",
        (*first, lane),
        (),
        (lanes,),
        ((*at, lane.var),),
        (value,),
        None,
        operator=stage.operator,
    )
    spread[target] = lanes
    return [one, two, three]


class _Change:
    """Expressions over new axes; sums are read by lane."""

    def __init__(
        self,
        axes: Sequence[Axis],
        places: dict[ir.Var, ir.Expr],
        rows: Sequence[Axis],
        lane: Axis,
        spread: dict[ir.Var, ir.Var],
    ) -> None:
        self._domain, self._places, self._spread = Domain(axes), places, spread
        self._where = [*(a.var for a in rows), lane.var]

    def __call__(self, expr: ir.Expr) -> ir.Expr:
        def read(found: ir.TensorLoad) -> ir.Expr:
            lanes = self._spread.get(found.source)
            return found if lanes is None else load(lanes, self._where)

        return self._domain.simplify(map_loads(substitute(expr, self._places), read))
