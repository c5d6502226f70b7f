"""Mean and variance of a row in one pass, about a shift near the mean: one barrier instead of two.

shift   = mean of the row's first SHIFT_ELEMENTS elements
sum     = sum of (v - shift); squares = sum of (v - shift)^2     # one pass
total   = sum + n * shift;    squares = max(squares - sum^2 / n, 0)

The difference cancels where the shift is far from the mean: it is off by ``(mean - shift)^2 / n``
roundings of float32. One element is at most ``sqrt(n)`` standard deviations off its row's mean, so
that the mean of SHIFT_ELEMENTS of them, all others alike, leaves a relative error of the variance
below ``n / SHIFT_ELEMENTS^2 * 2^-23``. Rows with results of half types are far above that.
"""

from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import loads, map_loads, substitute
from .....core.tir.loops import index
from ...program.emit import static_volume
from ...program.passes import equal_axes
from ...program.row_program import RowProgram, RowStage

SHIFT_ELEMENTS = 4
MAX_ELEMENTS = 1 << 15  # of a row: the error of its variance is below 2^-12


def with_one_pass_variance(program: RowProgram) -> RowProgram:
    """Compute sums of squared deviations from means together with the sums of the means.

    Parameters
    ----------
    program
        All of whose results are of half types.
    """
    for squares in program.stages:
        total = sum_of_deviations(program, squares)
        shift = _shift(program, total) if total is not None and _is_short(total) else None
        if total is not None and shift is not None:
            program = _rewritten(program, total, squares, shift)
    return program


def _is_short(total: RowStage) -> bool:
    """Whether the first elements of a row tell its mean well enough."""
    is_in_bounds = 2 * SHIFT_ELEMENTS <= static_volume(total.reduce, 0) <= MAX_ELEMENTS
    return is_in_bounds and (total.reduce[-1].size or 0) >= SHIFT_ELEMENTS


def sum_of_deviations(program: RowProgram, squares: RowStage) -> RowStage | None:
    """Find the sum whose mean a stage sums the squared deviations from."""
    if not _is_sum(program, squares) or not isinstance(squares.values[0], tirx.Mul):
        return None
    deviation, same = squares.values[0].a, squares.values[0].b
    if not tvm_ffi.structural_equal(deviation, same) or not isinstance(deviation, tirx.Sub):
        return None
    mean = _inlined_maps(program, deviation.b)
    means = [load for load in loads(mean) if program.is_internal(load.source)]
    if len(means) != 1:
        return None
    total = program.producer(means[0].source)
    if not _is_sum(program, total) or not equal_axes(total.reduce, squares.reduce):
        return None
    if not _is_mean(mean, means[0], static_volume(total.reduce, 0)):
        return None
    old, new = (*total.rows, *total.reduce), (*squares.rows, *squares.reduce)
    pairs = {a.var: b.var for a, b in zip(old, new, strict=True)}
    same = tvm_ffi.structural_equal(substitute(total.values[0], pairs), deviation.a)
    where = [substitute(i, pairs) for i in total.indices[0]]
    at_row = all(map(tvm_ffi.structural_equal, where, means[0].indices))
    return total if same and at_row and len(where) == len(means[0].indices) else None


def _is_sum(program: RowProgram, stage: RowStage) -> bool:
    """Whether a stage is a plain sum over a row in float32, used inside only."""
    if stage.combine is None or stage.inner or len(stage.values) != 1:
        return False
    (target,), (value,) = stage.targets, stage.combine.values
    start = stage.init[0]
    return (
        isinstance(value, tirx.Add)
        and isinstance(start, tirx.FloatImm)
        and float(start.value) == 0
        and str(target.dtype) == "float32"
        and program.is_internal(target)
    )


def _is_mean(expr: ir.Expr, total: ir.TensorLoad, size: int) -> bool:
    """Whether an expression is a sum divided by the number of its terms."""
    if not isinstance(expr, (tirx.Mul, tirx.Div)) or not isinstance(expr.b, tirx.FloatImm):
        return False
    factor = float(expr.b.value)
    count = factor if isinstance(expr, tirx.Div) else 1 / factor if factor else 0
    return expr.a.same_as(total) and abs(count - size) < 1e-6 * size


def _shift(program: RowProgram, total: RowStage) -> ir.Expr | None:
    """Write the mean of a row's first elements in terms of inputs."""
    value = _inlined_maps(program, total.values[0])
    if any(program.is_internal(load.source) for load in loads(value)):
        return None
    *outer, last = total.reduce
    terms = [
        substitute(value, {**{a.var: index(0) for a in outer}, last.var: index(number)})
        for number in range(SHIFT_ELEMENTS)
    ]
    return sum(terms[1:], terms[0]) * tirx.const(1 / SHIFT_ELEMENTS, "float32")


def _inlined_maps(program: RowProgram, value: ir.Expr) -> ir.Expr:
    """Put the values of maps in the place of their elements."""

    def inlined(load: ir.TensorLoad) -> ir.Expr:
        if not program.is_internal(load.source):
            return load
        producer = program.producer(load.source)
        written = producer.written(load.source)
        if not producer.is_map or not all(isinstance(i, ir.Var) for i in written):
            return load
        pairs = dict(zip(written, load.indices, strict=True))
        return _inlined_maps(program, substitute(producer.values[0], pairs))

    return map_loads(value, inlined)


def _rewritten(
    program: RowProgram, total: RowStage, squares: RowStage, shift: ir.Expr
) -> RowProgram:
    def declared(stage: RowStage, part: str) -> ir.Var:
        shape = [axis.extent for axis in stage.rows]
        return declare(shape, "float32", f"{stage.targets[0].name}_{part}")

    def row(stage: RowStage, target: ir.Var, value: ir.Expr, where: Sequence[ir.Expr]) -> RowStage:
        return RowStage.map_of(target, stage.rows, (), where, value)

    def own(stage: RowStage) -> list[ir.Expr]:
        return [axis.var for axis in stage.rows]

    near, part, parts = declared(total, "shift"), declared(total, "part"), declared(squares, "part")
    first = row(total, near, shift, own(total))

    def reduction(stage: RowStage, target: ir.Var, value: ir.Expr) -> RowStage:
        place = (tuple(own(stage)),)
        return replace(stage, name=target.name, targets=(target,), indices=place, values=(value,))

    total_term = total.values[0] - tirx.BufferLoad(near, own(total))
    square_term = squares.values[0].a.a - tirx.BufferLoad(near, own(squares))
    size = static_volume(total.reduce, 0)
    in_total = tirx.BufferLoad(part, own(total))
    in_squares = tirx.BufferLoad(part, own(squares))
    zero = tirx.const(0, "float32")
    all_terms = in_total + tirx.BufferLoad(near, own(total)) * tirx.const(size, "float32")
    about_mean = tirx.BufferLoad(parts, own(squares)) - in_squares * (
        in_squares * tirx.const(1 / size, "float32")
    )
    stages: list[RowStage] = []
    for stage in program.stages:
        if stage is total:
            stages += [first, reduction(total, part, total_term)]
            stages.append(row(total, total.targets[0], all_terms, total.indices[0]))
        elif stage is squares:
            stages.append(reduction(squares, parts, square_term * square_term))
            value = tirx.Max(about_mean, zero)
            stages.append(row(squares, squares.targets[0], value, squares.indices[0]))
        else:
            stages.append(stage)
    return program.with_stages(stages)
