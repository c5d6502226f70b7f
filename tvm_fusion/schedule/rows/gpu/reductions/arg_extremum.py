"""Argmax and argmin of rows on a GPU: first the extremum of a row, then its first index.

The program's argmax compares integers in the order of the numbers
(:mod:`tvm_fusion.ecg.legalization.operators.extrema`), 13 integer instructions an element, of which
a multiprocessor has half as many a cycle as of floating point ones. With the row in registers, two
passes over the numbers take 6:

top   = max(x[k])                                     # NaN if there is one
place = min(k where x[k] == top or x[k] is NaN)       # if x[k] is NaN, so is top
"""

from dataclasses import replace

import tvm_ffi
from tvm import ir, sym, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import call_name
from .....core.tir.loops import find
from .....ecg.legalization.operators.extrema import ordered
from .....lower.float_math import isnan
from ...program.combiner import Combiner
from ...program.row_program import RowProgram, RowStage

_SIGN = {tirx.GT: 1, tirx.LT: -1}  # of the comparison that keeps the result


def with_extrema_first(program: RowProgram) -> RowProgram:
    """Split each argmax or argmin of floating point numbers in two reductions."""
    stages: list[RowStage] = []
    for stage in program.stages:
        parts = _split(program, stage)
        if parts is None:
            stages.append(stage)
            continue
        stages += parts
    return program.with_stages(stages)


def _split(program: RowProgram, stage: RowStage) -> list[RowStage] | None:
    found = _number(program, stage)
    if found is None:
        return None
    number, sign = found
    extent = 1
    for axis in stage.reduce:
        if axis.size is None:
            return None
        extent *= axis.size
    if extent >= 2**31:
        return None
    rows = [axis.var for axis in stage.rows]
    shape = [axis.extent for axis in stage.rows]
    name = stage.targets[0].name
    top = declare(shape, "float32", f"{name}_extremum")
    place = declare(shape, "int32", f"{name}_place")
    extremum = tirx.Max if sign > 0 else tirx.Min
    first = replace(
        stage,
        name=f"{stage.name}_extremum",
        targets=(top,),
        indices=(tuple(rows),),
        values=(number,),
        init=(tirx.const(-sign * float("inf"), "float32"),),
        combine=_combiner("float32", extremum),
    )
    holds = tirx.Or(tirx.EQ(number, tirx.BufferLoad(top, rows)), isnan(number))
    index, none = tirx.Cast("int32", stage.values[0]), tirx.max_value("int32")
    second = replace(
        stage,
        name=f"{stage.name}_place",
        targets=(place,),
        indices=(tuple(rows),),
        values=(tirx.Select(holds, index, none),),
        init=(none,),
        combine=_combiner("int32", tirx.Min),
    )
    target, dtype = stage.targets[0], str(stage.targets[0].dtype)
    wide = replace(
        stage,
        reduce=(),
        targets=(target,),
        indices=stage.indices[:1],
        values=(tirx.Cast(dtype, tirx.BufferLoad(place, rows)),),
        init=(),
        combine=None,
    )
    return [first, second, wide]


def _number(program: RowProgram, stage: RowStage) -> tuple[ir.Expr, int] | None:
    """Return the float32 value whose extremum a stage finds, and 1 for a maximum."""
    combine = stage.combine
    if combine is None or len(stage.targets) != 2 or stage.inner or not stage.rows:
        return None
    key = stage.targets[1]
    if not program.is_internal(key) or any(
        load.source.same_as(key) for other in program.stages for load in other.loads
    ):
        return None
    sign = _sign(combine)
    bits = [c for c in find(stage.values[1], ir.Call) if call_name(c) == "reinterpret"]
    if sign is None or not bits or str(bits[0].args[0].ty.dtype) != "float32":
        return None
    number = bits[0].args[0]
    of_nan = tirx.max_value if sign > 0 else tirx.min_value
    return (number, sign) if _is_same(stage.values[1], ordered(number, of_nan)) else None


def _sign(combine: Combiner) -> int | None:
    """Tell a combiner that keeps the larger key, or the smaller one, and the first of equals."""
    (index, key), (new_index, new_key) = combine.results, combine.terms
    for comparison, sign in _SIGN.items():
        better = comparison(key, new_key)
        first = tirx.And(tirx.EQ(key, new_key), tirx.LT(index, new_index))
        wanted = (
            tirx.Select(tirx.Or(better, first), index, new_index),
            tirx.Select(better, key, new_key),
        )
        if all(map(tvm_ffi.structural_equal, combine.values, wanted)):
            return sign
    return None


def _combiner(dtype: str, kind: type[tirx.Max] | type[tirx.Min]) -> Combiner:
    result, term = tirx.Var("result", dtype), tirx.Var("term", dtype)
    return Combiner((result,), (term,), (kind(result, term),))


def _is_same(one: ir.Expr, other: ir.Expr) -> bool:
    analyzer = sym.Analyzer()
    return tvm_ffi.structural_equal(one, other) or tvm_ffi.structural_equal(
        analyzer.simplify(one), analyzer.simplify(other)
    )
