"""Maps cut along an axis at the bounds that their conditions name, so that parts have none."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tvm import ir, tirx

from .....core.tir.expressions import call_name
from .....core.tir.loops import constant, find, index, substitute
from .....program.stage import Axis, Stage
from ....index.index_ranges import Ranges


def cuts_of(value: ir.Expr, axes: Sequence[Axis]) -> dict[ir.Var, list[int]]:
    """Find the axes that conditions compare with constants, and where these lie within them.

    Parameters
    ----------
    axes
        Those to look for, of constant extent.
    """
    sizes = {a.var: constant(a.extent) or 0 for a in axes}
    found: dict[ir.Var, set[int]] = {}
    for call in find(value, ir.Call):
        if call_name(call) != "if_then_else":
            continue
        for kind in (tirx.LT, tirx.LE, tirx.GT, tirx.GE):
            for one in find(call.args[0], kind):
                for var, bound in ((one.a, one.b), (one.b, one.a)):
                    number = constant(bound)
                    if not isinstance(var, ir.Var) or var not in sizes or number is None:
                        continue
                    # x < 3 and x >= 3 cut before 3, x <= 3 and x > 3 behind it.
                    is_behind = isinstance(one, tirx.LE | tirx.GT) == var.same_as(one.a)
                    found.setdefault(var, set()).add(number + is_behind)
    inside = {v: sorted(n for n in numbers if 0 < n < sizes[v]) for v, numbers in found.items()}
    return {v: numbers for v, numbers in inside.items() if numbers}


def cut(stage: Stage, axis: Axis, places: Sequence[int]) -> list[Stage]:
    """Cut a map of one target.

    Parameters
    ----------
    axis
        One of its axes, of constant extent.
    places
        Where, in order, none of them an end.

    Returns
    -------
    list of Stage
        The parts, over axes of their own, with choices that are known in them resolved.
    """
    parts: list[Stage] = []
    bounds = [0, *places, constant(axis.extent) or 0]
    for begin, end in pairwise(bounds):
        own = Axis(tirx.Var(axis.var.name, "int64"), index(end - begin))
        axes = tuple(own if a is axis else _fresh(a) for a in stage.axes)
        moved: dict[ir.Var, ir.Expr] = {a.var: b.var for a, b in zip(stage.axes, axes, strict=True)}
        moved[axis.var] = own.var + begin
        ranges = Ranges()
        for one in axes:
            ranges.bind(one.var, one.extent)
        value = ranges.all_indices(ranges.value(substitute(stage.values[0], moved)))
        indices = tuple(ranges.index(substitute(i, moved)) for i in stage.indices[0])
        name = f"{stage.name}_{begin}"
        part = replace(stage, name=name, axes=axes, indices=(indices,), values=(value,))
        parts.append(replace(part, solution=None))
    return parts


def _fresh(axis: Axis) -> Axis:
    return Axis(ir.Var(axis.var.name, axis.var.ty), axis.extent)
