"""What is known of the exponentials of differences from a row's maximum, and of their sum.

Proven from the stages, whatever they are called: the argument of the exponential is a term of the
maximum minus the maximum over the same elements, so no number above 0; the sum of all of them
holds the 1 of the maximum itself. Rows that hold NaN are the exception, and NaN their sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

from ..._tvm.buffer import declare
from ...core.expressions import call_name
from ...core.loops import find
from ..expressions import contains, is_maximum, substitute
from .passes import equal_axes
from .stages import Axis, RowStages, Stage


def decaying(program: RowStages) -> list[ir.Call]:
    """List the float32 exponentials of a term of a row's maximum minus that maximum."""
    return [
        call
        for stage in program.stages
        for value in stage.values
        for call in find(value, ir.Call)
        if _is_decaying(program, stage, call)
    ]


def with_inverses(program: RowStages) -> RowStages:
    """Divide 1 by a row's sum of such exponentials once, and multiply by that.

    The sum is a number from 1 on: its inverse is normal, and products with it are right to one unit
    of the last place more than quotients. A sum of 0, of a row whose elements are all minus
    infinity, still makes NaN of 0, and NaN stays.
    """
    stages: list[Stage] = []
    internal = list(program.internal)
    inverses: list[tuple[ir.Var, ir.Var]] = []  # with the sums that they are of
    for stage in program.stages:
        stages.append(_multiplied(stage, inverses))
        if sums_decaying(program, stage):
            (total,), (indices,) = stage.targets, stage.indices
            inverse = declare(list(total.shape), "float32", f"{total.name}_inverse")
            value = tirx.const(1, "float32") / tirx.BufferLoad(total, list(indices))
            stages.append(Stage(inverse.name, stage.rows, (), (), (inverse,), (indices,), (value,)))
            inverses.append((total, inverse))
            internal.append(inverse)
    used = [new for _, new in inverses if any(_reads(stage, new) for stage in stages)]
    unused = [new for _, new in inverses if not contains(used, new)]
    return RowStages(
        program.func,
        tuple(s for s in stages if not contains(unused, s.targets[0])),
        tuple(b for b in internal if not contains(unused, b)),
    )


def _multiplied(stage: Stage, inverses: Sequence[tuple[ir.Var, ir.Var]]) -> Stage:
    """Multiply by inverses where a stage divides elements of a row by their sums."""

    def take(quotient: tirx.Div) -> ir.Expr:
        divisor = quotient.b
        if isinstance(divisor, ir.TensorLoad):
            for total, inverse in inverses:
                if divisor.source.same_as(total):
                    return quotient.a * tirx.BufferLoad(inverse, list(divisor.indices))
        return quotient

    if not inverses or not stage.domain:
        return stage
    values = [tvm_ffi.structural_map(v, (tirx.Div, take), order="post") for v in stage.values]
    return stage.with_values(values)


def _reads(stage: Stage, buffer: ir.Var) -> bool:
    return any(load.source.same_as(buffer) for load in stage.loads)


def sums_decaying(program: RowStages, stage: Stage) -> bool:
    """Whether a stage sums such exponentials over a whole row, computed here or in a stage."""
    if stage.combine is None or stage.inner or len(stage.values) != 1:
        return False
    value = stage.values[0]
    if not isinstance(stage.combine.values[0], tirx.Add) or not _is_zero(stage.init[0]):
        return False
    if isinstance(value, ir.Call):
        return _is_decaying(program, stage, value)
    if not isinstance(value, ir.TensorLoad) or not program.is_internal(value.source):
        return False
    producer = program.stages[program.producer(value.source)]
    if not producer.is_map or not _is_whole(producer, stage, value):
        return False
    computed = producer.values[0]
    return isinstance(computed, ir.Call) and _is_decaying(program, producer, computed)


def _is_whole(producer: Stage, stage: Stage, load: ir.TensorLoad) -> bool:
    """Whether a reduction reads every element of a producer's row once, in any order of axes."""
    written = producer.written(load.source)
    axes = [axis.var for axis in (*producer.rows, *producer.inner)]
    if len(producer.targets) != 1 or not equal_axes(producer.inner, stage.domain):
        return False
    pairs = _paired((*producer.rows, *producer.inner), (*stage.rows, *stage.domain))
    return (
        len(written) == len(axes)
        and all(isinstance(i, ir.Var) and contains(axes, i) for i in written)
        and _equal(load.indices, [substitute(i, pairs) for i in written])
    )


def _is_decaying(program: RowStages, stage: Stage, call: ir.Call) -> bool:
    """Whether a call is ``exp(x - m)``, ``m`` the maximum of ``x`` over the stage's own axes."""
    if call_name(call) != "exp" or str(call.ty.dtype) != "float32":
        return False
    difference = call.args[0]
    if not isinstance(difference, tirx.Sub) or not isinstance(difference.b, ir.TensorLoad):
        return False
    load = difference.b
    if not program.is_internal(load.source):
        return False
    peak = program.stages[program.producer(load.source)]
    if peak.combine is None or peak.inner or not equal_axes(peak.reduce, stage.domain):
        return False
    if len(peak.values) != 1 or not is_maximum(peak.combine.values[0]):
        return False
    pairs = _paired((*peak.rows, *peak.reduce), (*stage.rows, *stage.domain))
    return _equal(load.indices, [substitute(i, pairs) for i in peak.indices[0]]) and (
        tvm_ffi.structural_equal(difference.a, substitute(peak.values[0], pairs))
    )


def _paired(old: Sequence[Axis], new: Sequence[Axis]) -> list[tuple[ir.Var, ir.Expr]]:
    return [(a.var, b.var) for a, b in zip(old, new, strict=True)]


def _equal(some: Sequence[ir.Expr], others: Sequence[ir.Expr]) -> bool:
    return len(some) == len(others) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(some, others, strict=True)
    )


def _is_zero(value: ir.Expr) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0
