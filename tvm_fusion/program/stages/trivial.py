"""Remove unit axes and no-op updates from stages."""

from dataclasses import replace

from tvm import ir, tirx

from ...core.tir.expressions import map_loads, substitute
from ..stage import Stage


def without_unit_axes(stage: Stage) -> Stage:
    """Put 0 for axes of extent 1; a reduction over such alone becomes a map."""
    zero = tirx.IntImm("int64", 0)
    unit = {a.var: zero for a in (*stage.axes, *stage.reduce) if is_number(a.extent, 1)}
    if unit:
        stage = replace(
            stage,
            axes=tuple(a for a in stage.axes if a.var not in unit),
            reduce=tuple(a for a in stage.reduce if a.var not in unit),
            indices=tuple(tuple(substitute(i, unit) for i in w) for w in stage.indices),
            values=tuple(substitute(v, unit) for v in stage.values),
            init=stage.init and tuple(substitute(v, unit) for v in stage.init),
        )
    if stage.init is not None and not stage.reduce:
        first = dict(zip(stage.targets, stage.init, strict=True))
        values = tuple(
            map_loads(v, lambda found: first.get(found.source, found)) for v in stage.values
        )
        stage = replace(stage, values=values, init=None)
    return stage


def without_idle_updates(stage: Stage) -> Stage:
    """Make a reduction whose updates change nothing, as over padding alone, a map of its start."""
    if stage.init is None or not all(
        isinstance(value, ir.TensorLoad) and value.source.same_as(target)
        for value, target in zip(stage.values, stage.targets, strict=True)
    ):
        return stage
    return replace(stage, reduce=(), values=stage.init, init=None)


def is_number(expr: ir.Expr, value: int) -> bool:
    """Whether an expression is a known number."""
    return isinstance(expr, tirx.IntImm) and int(expr.value) == value
