"""Prefix sums along rows, on a CPU.

parallel for row:
    total = 0
    for i in range(length):
        total += x[row, i]; y[row, i] = total

With maps around the sum, parts of a row are mapped in vectors, summed in place and mapped again.
"""

from collections.abc import Callable
from functools import partial

from tvm import ir, tirx

from ..._tvm.ir.buffer import scratch
from ...core.tir.loops import (
    block,
    ceildiv,
    choose,
    constant,
    coordinates,
    index,
    loop,
    product,
    sequence,
    tasks,
    when,
)
from ..cpu.register_tile import in_vectors
from ..math.vector_math import makes_vectors, vector_math
from .config import ColumnScanConfig
from .problem import PrefixSumProblem

# Prefix sums along an axis before the last, on a CPU.
#
# parallel for slice before the axis, block of columns behind it:
#     total[columns] = 0
#     for i along the axis:
#         for vector of the columns:
#             total += x[i]; y[i] = total


LANES = 16  # of a vector; those of the remainder are powers of two
PART = 64  # elements of a row whose maps are computed in vectors, before and behind their sum


def scan_columns(scan: PrefixSumProblem, config: ColumnScanConfig) -> tirx.Stmt:
    """Write the loop over blocks of columns."""
    before, behind = scan.shape[: scan.axis], scan.shape[scan.axis + 1 :]
    slices, columns = product(before), product(behind)
    extent, width = constant(columns), config.columns
    if extent is None:
        blocks = ceildiv(columns, width)

        def some(task: ir.Expr) -> tirx.Stmt:
            start = tirx.floormod(task, blocks) * width
            return _block(scan, tirx.floordiv(task, blocks), start, width, columns)

        return tasks(product([slices, blocks]), some)
    ranges: list[tuple[ir.Expr, Callable[[ir.Expr], tirx.Stmt]]] = []
    start = 0
    while start < extent:
        full = (extent - start) // width
        if full:
            ranges.append(
                (product([slices, full]), partial(_block_of_range, scan, full, start, width))
            )
            start += full * width
        width = width // 2
    total = index(0)
    for number, _ in ranges:
        total = total + number
    return tasks(product([total]), lambda task: choose(task, ranges))


def _block_of_range(
    scan: PrefixSumProblem, full: int, start: int, width: int, task: ir.Expr
) -> tirx.Stmt:
    """Sum one of several blocks of the same width."""
    first = tirx.floormod(task, index(full)) * width + start
    return _block(scan, tirx.floordiv(task, index(full)), first, width, None)


def _block(
    scan: PrefixSumProblem, number: ir.Expr, start: ir.Expr, width: int, columns: ir.Expr | None
) -> tirx.Stmt:
    """Sum some columns of a slice; those beyond ``columns``, if given, are masked."""
    shape = scan.shape
    before = coordinates(number, list(shape[: scan.axis]))
    total = scratch([index(width)], scan.dtype, "total", scope="local")
    lanes, kind = min(width, LANES), _kind(scan)

    def lane(body: Callable[[ir.Expr, list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
        def at(position: ir.Expr) -> tirx.Stmt:
            column = start + position
            done = body(position, coordinates(column, list(shape[scan.axis + 1 :])))
            return done if columns is None else when(column < columns, done)

        if columns is not None:
            return loop("column", width, at)

        def vector(v: ir.Expr) -> tirx.Stmt:
            return loop("lane", lanes, lambda i: at(v * lanes + i), kind)

        return loop("vector", width // lanes, vector)

    def clear(position: ir.Expr, _: list[ir.Expr]) -> tirx.Stmt:
        return tirx.BufferStore(total, tirx.const(0, scan.dtype), [position])

    def line(i: ir.Expr) -> tirx.Stmt:
        def element(position: ir.Expr, behind: list[ir.Expr]) -> tirx.Stmt:
            place = [*before, i, *behind]
            held = tirx.BufferLoad(total, [position])
            add = tirx.BufferStore(total, held + _summand(scan, place), [position])
            stores = _stores(scan, place, held)
            return sequence([*stores, add] if scan.is_exclusive else [add, *stores])

        return lane(element)

    body = sequence([lane(clear), loop("i", shape[scan.axis], line)])
    return block("columns", body, [total])


def _kind(scan: PrefixSumProblem) -> int:
    """Tell whether TVM makes vectors of the maps."""
    values = [vector_math(one.value) for one in (scan.before, *scan.after)]
    is_vector = all(map(makes_vectors, values))
    return tirx.ForKind.VECTORIZED if is_vector else tirx.ForKind.SERIAL


def _summand(scan: PrefixSumProblem, place: list[ir.Expr]) -> ir.Expr:
    return tirx.Cast(scan.dtype, vector_math(scan.before.at(place)))


def _stores(scan: PrefixSumProblem, place: list[ir.Expr], held: ir.Expr) -> list[tirx.Stmt]:
    """Store what maps make of a sum."""
    results = scan.results(place, tirx.Cast(str(scan.sums.dtype), held))
    return [tirx.BufferStore(y, vector_math(value), place) for y, value in results]


def scan_cpu(scan: PrefixSumProblem) -> tirx.Stmt:
    """Write the loop over rows."""
    length = constant(scan.length)
    write = _row if scan.is_plain or length is None else _row_of_maps
    return tasks(product(scan.rows), lambda number: write(scan, coordinates(number, scan.rows)))


def _row(scan: PrefixSumProblem, place: list[ir.Expr]) -> tirx.Stmt:
    total = scratch([index(1)], scan.dtype, "total", scope="local")
    held = tirx.BufferLoad(total, [index(0)])

    def element(i: ir.Expr) -> tirx.Stmt:
        add = tirx.BufferStore(total, held + _summand(scan, [*place, i]), [index(0)])
        stores = _stores(scan, [*place, i], held)
        return sequence([*stores, add] if scan.is_exclusive else [add, *stores])

    start = tirx.BufferStore(total, tirx.const(0, scan.dtype), [index(0)])
    return block("row", sequence([start, loop("i", scan.length, element)]), [total])


def _row_of_maps(scan: PrefixSumProblem, place: list[ir.Expr]) -> tirx.Stmt:
    """Sum a row in parts, the maps of which are computed in vectors."""
    length = constant(scan.length) or 1
    part, kind = scratch([index(PART)], scan.dtype, "part", scope="local"), _kind(scan)
    total = scratch([index(2)], scan.dtype, "total", scope="local")
    zero, one = index(0), index(1)
    held, value = tirx.BufferLoad(total, [zero]), tirx.BufferLoad(total, [one])

    def mapped(count: int, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        if kind == tirx.ForKind.SERIAL:
            return loop("lane", count, body)
        return in_vectors(count, body)

    def some(start: ir.Expr, count: int) -> tirx.Stmt:
        def read(j: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(part, _summand(scan, [*place, start + j]), [j])

        def add(j: ir.Expr) -> tirx.Stmt:
            take = tirx.BufferStore(total, tirx.BufferLoad(part, [j]), [one])
            grow = tirx.BufferStore(total, held + value, [zero])
            keep = tirx.BufferStore(part, held, [j])
            return sequence([take, keep, grow] if scan.is_exclusive else [take, grow, keep])

        def write(j: ir.Expr) -> tirx.Stmt:
            return sequence(_stores(scan, [*place, start + j], tirx.BufferLoad(part, [j])))

        return sequence([mapped(count, read), loop("j", count, add), mapped(count, write)])

    stmts = [tirx.BufferStore(total, tirx.const(0, scan.dtype), [zero])]
    if full := length // PART:
        stmts.append(loop("part", full, lambda n: some(n * PART, PART)))
    if rest := length % PART:
        stmts.append(some(index(full * PART), rest))
    return block("row", sequence(stmts), [part, total])
