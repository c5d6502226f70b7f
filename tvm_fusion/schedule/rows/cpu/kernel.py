"""The row kernel on a CPU: one parallel loop over rows, vectorized inside.

within rows (the usual case):
    parallel for row:
        for pass over the row (max, sum of exp, normalize, ..):
            for vectors of the row: compute; partial reductions per lane; store
            combine the lanes of each reduction
across rows (neighbouring rows are contiguous, elements of a row are not):
    parallel for vector of rows:
        for pass, element of the row: the same, a row for each lane
"""

from collections.abc import Callable

from tvm import ir, sym, tirx
from tvm.target import Target

from ....core.tir.loops import block, index, kernel, loop, sequence, tasks
from ....device import device_of
from ....program.program import Program
from ..program.emit import unflatten, volume
from ..program.passes import Pass, are_vectors, lanes_are_rows, plan_passes
from ..program.row_program import RowProgram, row_program
from ..program.softmax import with_fast_maxima, with_inverses
from .config import CpuRowConfig, width_in_blocks
from .loops import pass_over_row, pass_over_rows, power_of_two
from .prefetch import Prefetch, plan_hints
from .vectors import CpuRowVectors

ROWS_PER_TASK = 256  # of a task without vectors


def schedule_rows_cpu(
    program: Program, target: Target, config: CpuRowConfig | None = None
) -> tirx.PrimFunc:
    """Run a row program as one parallel loop over its rows.

    Inside a row, stages over the same elements share a pass in vectors; reductions keep one
    partial result for each lane. Where neighbouring rows are contiguous in memory and the elements
    of a row are not, the lanes are rows instead.

    Parameters
    ----------
    config
        Vectors and tasks; by default those for the target.

    Raises
    ------
    ValueError
        If a reduction cannot be split into terms and a combiner.
    """
    rows, config = _prepared(program), config or CpuRowConfig.of(program, device_of(target))
    if not lanes_are_rows(rows):
        schedule = _within_rows
    elif are_vectors(rows):
        schedule = _across_rows
    else:
        schedule = _scalar_rows
    return kernel(program, schedule(rows, plan_passes(rows), config))


def row_by_number(program: Program, target: Target) -> Callable[[ir.Expr], tirx.Stmt] | None:
    """Write single rows, for kernels that compute rows on their own; ``None`` if lanes are rows.

    Parameters
    ----------
    program, target
        As for :func:`schedule_rows_cpu`.
    """
    rows = _prepared(program)
    if lanes_are_rows(rows):
        return None
    return _row(rows, plan_passes(rows), CpuRowConfig.of(program, device_of(target)))


def _prepared(program: Program) -> RowProgram:
    return with_fast_maxima(with_inverses(row_program(program)))


def _within_rows(program: RowProgram, passes: list[Pass], config: CpuRowConfig) -> tirx.Stmt:
    """Vectorize along the elements of a row; tasks are rows."""
    count, row = volume(program.rows), _row(program, passes, config)
    if isinstance(count, tirx.IntImm) and int(count) == 1:
        return tasks(count, row, False)
    return loop("row", count, row, _kind(config))


def _row(
    program: RowProgram, passes: list[Pass], config: CpuRowConfig
) -> Callable[[ir.Expr], tirx.Stmt]:
    count = volume(program.rows)
    width = width_in_blocks(program, config.width)
    hints = plan_hints(program, passes) if config.prefetches else [[] for _ in passes]

    def row(number: ir.Expr) -> tirx.Stmt:
        position = unflatten(number, program.rows)
        following = unflatten(tirx.min(number + 1, count - 1), program.rows)
        lanes = CpuRowVectors(program, passes, lambda lane: position)
        loops = [
            pass_over_row(
                lanes, one.stages, width, Prefetch(some, position, following), config.width
            )
            for one, some in zip(passes, hints, strict=True)
        ]
        return block("row", sequence(loops), lanes.buffers)

    return row


def _across_rows(program: RowProgram, passes: list[Pass], config: CpuRowConfig) -> tirx.Stmt:
    """Vectorize along the last row axis; tasks are vectors of rows."""
    *outer, last = program.rows
    extent = index(last.extent)
    width = power_of_two(last.size, width_in_blocks(program, config.width))
    chunks = sym.Analyzer().simplify(tirx.floordiv(extent + (width - 1), index(width)))

    def task(number: ir.Expr) -> tirx.Stmt:
        position = unflatten(tirx.floordiv(number, chunks), outer)
        start = tirx.floormod(number, chunks) * width
        if last.size is not None:
            # The last vector moves back to fit; rows computed twice are stored twice, all alike.
            return vector(position, tirx.min(start, extent - width), index(width))
        count = tirx.min(extent - start, index(width))
        full = vector(position, start, index(width))
        return tirx.IfThenElse(count >= width, full, vector(position, start, count))

    def vector(position: list[ir.Expr], start: ir.Expr, count: ir.Expr) -> tirx.Stmt:
        lanes = CpuRowVectors(program, passes, lambda lane: [*position, start + lane], width)
        body = sequence(
            [pass_over_rows(lanes, one.stages, count, width, config.width) for one in passes]
        )
        return block("rows", body, lanes.buffers)

    return loop("task", volume(outer) * chunks, task, _kind(config))


def _scalar_rows(program: RowProgram, passes: list[Pass], config: CpuRowConfig) -> tirx.Stmt:
    """Compute rows one by one in registers; tasks are runs of rows along the last row axis.

    For pooling windows and other short rows whose loads do not vectorize. A run divides once to
    recover its position.
    """
    *outer, last = program.rows
    extent = index(last.extent)
    length = last.size if last.size is not None and last.size <= ROWS_PER_TASK else ROWS_PER_TASK
    runs = sym.Analyzer().simplify(tirx.floordiv(extent + (length - 1), index(length)))

    def task(number: ir.Expr) -> tirx.Stmt:
        position = unflatten(tirx.floordiv(number, runs), outer)
        start = tirx.floormod(number, runs) * length

        def row(place: ir.Expr) -> tirx.Stmt:
            lanes = CpuRowVectors(program, passes, lambda lane: [*position, start + place])
            body = sequence([pass_over_row(lanes, one.stages, 1) for one in passes])
            return block("row", body, lanes.buffers)

        whole = last.size is not None and last.size % length == 0
        count = index(length) if whole else tirx.min(extent - start, index(length))
        return loop("place", count, row)

    return loop("run", volume(outer) * runs, task, _kind(config))


def _kind(config: CpuRowConfig) -> int:
    return tirx.ForKind.PARALLEL if config.is_parallel else tirx.ForKind.SERIAL
