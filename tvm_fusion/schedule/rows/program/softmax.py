"""Properties of softmax rows: ``exp(x - max(x))``, and the sum of these exponentials.

Proved from the stages, whatever they are called: the argument of the exponential is a term of the
maximum minus the maximum over the same elements, so it is at most 0; the sum over the row contains
the 1 of the maximum itself. Rows with NaN are the exception, and their sum is NaN.
"""

from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import call_name, loads, substitute
from ....core.tir.loops import find
from ....program.stage import Axis
from ...math.vector_math import is_maximum, plain_maximum
from .combiner import Combiner
from .passes import equal_axes
from .row_program import RowProgram, RowStage


def decaying(program: RowProgram) -> list[ir.Call]:
    """List the float32 exponentials of a term of a row's maximum minus that maximum."""
    return [
        call
        for stage in program.stages
        for value in stage.values
        for call in find(value, ir.Call)
        if _is_decaying(program, stage, call)
    ]


def with_inverses(program: RowProgram) -> RowProgram:
    """Divide 1 by a row's sum of such exponentials once, and multiply by that.

    The sum is at least 1: its inverse is normal, and products with it have an error of one more ulp
    than quotients. A sum of 0, of a row of minus infinity, still makes NaN of 0, and NaN stays.
    """
    stages: list[RowStage] = []
    inverses: list[tuple[ir.Var, ir.Var]] = []  # with the sums that they are of
    for stage in program.stages:
        stages.append(_multiplied(stage, inverses))
        if sums_decaying(program, stage):
            (total,), (indices,) = stage.targets, stage.indices
            inverse = declare(list(total.shape), "float32", f"{total.name}_inverse")
            value = tirx.const(1, "float32") / tirx.BufferLoad(total, list(indices))
            stages.append(RowStage.map_of(inverse, stage.rows, (), indices, value))
            inverses.append((total, inverse))
    used = [new for _, new in inverses if any(_reads(stage, new) for stage in stages)]
    unused = [new for _, new in inverses if new not in used]
    return program.with_stages([s for s in stages if s.targets[0] not in unused])


def _multiplied(stage: RowStage, inverses: Sequence[tuple[ir.Var, ir.Var]]) -> RowStage:
    """Multiply by inverses where a stage divides elements of a row by their sum."""

    def take(quotient: tirx.Div) -> ir.Expr:
        divisor = quotient.b
        if isinstance(divisor, ir.TensorLoad):
            for total, inverse in inverses:
                if divisor.source.same_as(total):
                    return quotient.a * tirx.BufferLoad(inverse, list(divisor.indices))
        return quotient

    if not inverses or not stage.loop_axes:
        return stage
    values = [tvm_ffi.structural_map(v, (tirx.Div, take), order="post") for v in stage.values]
    return stage.with_values(values)


def _reads(stage: RowStage, buffer: ir.Var) -> bool:
    return any(load.source.same_as(buffer) for load in stage.loads)


def sums_decaying(program: RowProgram, stage: RowStage) -> bool:
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
    producer = program.producer(value.source)
    if not producer.is_map or not _is_whole(producer, stage, value):
        return False
    computed = producer.values[0]
    return isinstance(computed, ir.Call) and _is_decaying(program, producer, computed)


def _is_whole(producer: RowStage, stage: RowStage, load: ir.TensorLoad) -> bool:
    """Whether a reduction reads every element of a producer's row once, in any order of axes."""
    written = producer.written(load.source)
    axes = [axis.var for axis in (*producer.rows, *producer.inner)]
    if len(producer.targets) != 1 or not equal_axes(producer.inner, stage.loop_axes):
        return False
    pairs = _paired((*producer.rows, *producer.inner), (*stage.rows, *stage.loop_axes))
    return (
        len(written) == len(axes)
        and all(isinstance(i, ir.Var) and i in axes for i in written)
        and _equal(load.indices, [substitute(i, pairs) for i in written])
    )


def _is_decaying(program: RowProgram, stage: RowStage, call: ir.Call) -> bool:
    """Whether a call is ``exp(x - m)``, ``m`` the maximum of ``x`` over the stage's own axes."""
    if call_name(call) != "exp" or str(call.ty.dtype) != "float32":
        return False
    difference = call.args[0]
    if not isinstance(difference, tirx.Sub) or not isinstance(difference.b, ir.TensorLoad):
        return False
    load = difference.b
    if not program.is_internal(load.source):
        return False
    row_max = program.producer(load.source)
    if row_max.combine is None or row_max.inner or not equal_axes(row_max.reduce, stage.loop_axes):
        return False
    if len(row_max.values) != 1 or not is_maximum(row_max.combine.values[0]):
        return False
    pairs = _paired((*row_max.rows, *row_max.reduce), (*stage.rows, *stage.loop_axes))
    return _equal(load.indices, [substitute(i, pairs) for i in row_max.indices[0]]) and (
        tvm_ffi.structural_equal(difference.a, substitute(row_max.values[0], pairs))
    )


def _paired(old: Sequence[Axis], new: Sequence[Axis]) -> dict[ir.Var, ir.Expr]:
    return {a.var: b.var for a, b in zip(old, new, strict=True)}


def _equal(some: Sequence[ir.Expr], others: Sequence[ir.Expr]) -> bool:
    return len(some) == len(others) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(some, others, strict=True)
    )


def _is_zero(value: ir.Expr) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


# Row maxima under softmax that need not propagate NaN, since the row's sum does.
#
# Propagating NaN costs three x86 instructions instead of one for each element. In a row with NaN,
# ``exp(x - m)`` is NaN wherever ``x`` is, whatever the maximum ``m``; so is their sum, and all that
# is divided by it.
_SWALLOWING = (tirx.Select, tirx.Max, tirx.Min, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ)


def with_fast_maxima(program: RowProgram) -> RowProgram:
    """Let row maxima that only softmax reads ignore NaN."""
    return program.with_stages([_plain(program, stage) for stage in program.stages])


def _plain(program: RowProgram, stage: RowStage) -> RowStage:
    combine = stage.combine
    if combine is None or len(combine.values) != 1 or not isinstance(combine.values[0], tirx.Max):
        return stage
    (row_max,) = stage.targets
    if not program.is_internal(row_max) or not _sum_has_nan(program, row_max):
        return stage
    values = (plain_maximum(combine.results[0], combine.terms[0]),)
    return replace(stage, combine=Combiner(combine.results, combine.terms, values))


def _sum_has_nan(program: RowProgram, row_max: ir.Var) -> bool:
    """Whether all results that depend on a maximum are NaN where the sum of its softmax is."""
    decays = [
        call
        for call in decaying(program)
        if any(load.source.same_as(row_max) for load in loads(call.args[0].b))
    ]
    from_max: list[ir.Var] = [row_max]
    from_sum: list[ir.Var] = []
    for stage in program.stages:
        reads = [load.source for load in stage.loads]
        if any(buffer in from_sum for buffer in reads):
            written = (*stage.values, *(stage.combine.values if stage.combine else ()))
            if any(find(value, kind) for value in written for kind in _SWALLOWING):
                return False
            from_sum += stage.targets
        elif any(buffer in from_max for buffer in reads):
            if any(not program.is_internal(target) for target in stage.targets):
                return False
            is_sum = bool(decays) and sums_decaying(program, stage)
            (from_sum if is_sum else from_max).extend(stage.targets)
    return bool(from_sum)
