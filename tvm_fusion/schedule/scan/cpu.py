"""Prefix sums along rows, on a CPU.

parallel for row:
    total = 0
    for i in range(length):
        total += x[row, i]; y[row, i] = total
"""

from __future__ import annotations

from tvm import ir, tirx

from ..._tvm.ir.buffer import scratch
from ...core.tir.loops import block, coordinates, index, loop, product, sequence, tasks
from .problem import PrefixSumProblem


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
