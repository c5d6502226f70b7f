"""Prefix sums along rows, on a CPU.

parallel for row:
    total = 0
    for i in range(length):
        total += x[row, i]; y[row, i] = total
"""

from __future__ import annotations

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


def scan_columns(scan: PrefixSumProblem, config: ColumnScanConfig) -> tirx.Stmt:
    """Write the loop over blocks of columns."""
    before, behind = scan.source.shape[: scan.axis], scan.source.shape[scan.axis + 1 :]
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
    shape = scan.source.shape
    before = coordinates(number, list(shape[: scan.axis]))
    total = scratch([index(width)], scan.dtype, "total", scope="local")
    lanes = min(width, LANES)

    def lane(body: Callable[[ir.Expr, list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
        def at(position: ir.Expr) -> tirx.Stmt:
            column = start + position
            done = body(position, coordinates(column, list(shape[scan.axis + 1 :])))
            return done if columns is None else when(column < columns, done)

        if columns is not None:
            return loop("column", width, at)

        def vector(v: ir.Expr) -> tirx.Stmt:
            kind = tirx.ForKind.VECTORIZED
            return loop("lane", lanes, lambda i: at(v * lanes + i), kind)

        return loop("vector", width // lanes, vector)

    def clear(position: ir.Expr, _: list[ir.Expr]) -> tirx.Stmt:
        return tirx.BufferStore(total, tirx.const(0, scan.dtype), [position])

    def line(i: ir.Expr) -> tirx.Stmt:
        def element(position: ir.Expr, behind: list[ir.Expr]) -> tirx.Stmt:
            place = [*before, i, *behind]
            held = tirx.BufferLoad(total, [position])
            value = tirx.Cast(scan.dtype, tirx.BufferLoad(scan.source, place))
            add = tirx.BufferStore(total, held + value, [position])
            store = tirx.BufferStore(scan.target, tirx.Cast(str(scan.target.dtype), held), place)
            return sequence([store, add] if scan.is_exclusive else [add, store])

        return lane(element)

    body = sequence([lane(clear), loop("i", shape[scan.axis], line)])
    return block("columns", body, [total])


def scan_cpu(scan: PrefixSumProblem) -> tirx.Stmt:
    """Write the loop over rows."""

    def row(number: ir.Expr) -> tirx.Stmt:
        place = coordinates(number, scan.rows)
        total = scratch([index(1)], scan.dtype, "total", scope="local")
        held = tirx.BufferLoad(total, [index(0)])

        def element(i: ir.Expr) -> tirx.Stmt:
            value = tirx.Cast(scan.dtype, tirx.BufferLoad(scan.source, [*place, i]))
            add = tirx.BufferStore(total, held + value, [index(0)])
            store = tirx.BufferStore(
                scan.target, tirx.Cast(str(scan.target.dtype), held), [*place, i]
            )
            return sequence([store, add] if scan.is_exclusive else [add, store])

        start = tirx.BufferStore(total, tirx.const(0, scan.dtype), [index(0)])
        return block("row", sequence([start, loop("i", scan.length, element)]), [total])

    return tasks(product(scan.rows), row)
