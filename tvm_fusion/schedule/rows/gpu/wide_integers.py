"""Extrema of bytes and short integers, reduced as 32-bit ones on a GPU.

Warps shuffle words only: TVM reduces anything smaller by a tree in shared memory, with a barrier
before and after, which takes longer than the loads of a short row.

    r = max over c of x[c]            w = max over c of int32(x[c])
    y = f(r)                          y = f(int8(w))
"""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import map_loads
from ..program.combiner import Combiner
from ..program.row_program import RowProgram, RowStage

NARROW = frozenset({"int8", "uint8", "int16", "uint16"})
WIDE = "int32"


def with_wide_integers(program: RowProgram) -> RowProgram:
    """Reduce extrema of narrow integers in 32 bits.

    Returns
    -------
    RowProgram
        The same results; those that were outputs are stored by a map.
    """
    wide: dict[ir.Var, ir.Var] = {}
    stages: list[RowStage] = []
    for stage in program.stages:
        if not _is_narrow_extremum(stage):
            stages.append(stage)
            continue
        (target,) = stage.targets
        extents = [axis.extent for axis in (*stage.rows, *stage.inner)]
        wide[target] = declare(extents, WIDE, f"{target.name}_wide")
        stages.append(_widened(stage, wide[target]))
        if not program.is_internal(target):
            stages.append(_stored(stage, wide[target]))
    if not wide:
        return program

    def narrow(load: ir.TensorLoad) -> ir.Expr:
        own = wide.get(load.source)
        if own is None:
            return load
        read = tirx.BufferLoad(own, list(load.indices)[: len(own.shape)])
        return tirx.Cast(str(load.ty.dtype), read)

    return program.with_stages(stages).map_values(lambda value: map_loads(value, narrow))


def _is_narrow_extremum(stage: RowStage) -> bool:
    """Whether a stage reduces whole rows to one narrow integer each."""
    return (
        stage.combine is not None
        and not stage.inner
        and len(stage.targets) == 1
        and str(stage.targets[0].dtype) in NARROW
        and isinstance(stage.combine.values[0], (tirx.Max, tirx.Min))
        and all(axis.size for axis in stage.reduce)
    )


def _widened(stage: RowStage, target: ir.Var) -> RowStage:
    assert stage.combine is not None
    result, term = tirx.Var("result", WIDE), tirx.Var("term", WIDE)
    kind = type(stage.combine.values[0])
    limit = tirx.min_value if kind is tirx.Max else tirx.max_value
    return replace(
        stage,
        targets=(target,),
        indices=(tuple(axis.var for axis in stage.rows),),
        values=(tirx.Cast(WIDE, stage.values[0]),),
        init=(limit(WIDE),),  # by which TVM recognizes extrema; there is a term
        combine=Combiner((result,), (term,), (kind(result, term),)),
    )


def _stored(stage: RowStage, source: ir.Var) -> RowStage:
    """Store the result where the narrow one was wanted."""
    rows = [axis.var for axis in stage.rows]
    value = tirx.Cast(str(stage.targets[0].dtype), tirx.BufferLoad(source, rows))
    return replace(
        stage, name=f"{stage.name}_result", reduce=(), values=(value,), init=(), combine=None
    )
