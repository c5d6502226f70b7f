"""Running sums on a CPU: a task a row, an element after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.loops import block, coordinates, index, loop, product, sequence, tasks

if TYPE_CHECKING:
    from .template import Sums


def scan_cpu(scan: Sums) -> tirx.Stmt:
    """Write the loop over rows."""

    def row(number: ir.Expr) -> tirx.Stmt:
        place = coordinates(number, scan.rows)
        total = scratch([index(1)], scan.dtype, "total", scope="local")
        held = tirx.BufferLoad(total, [index(0)])

        def element(i: ir.Expr) -> tirx.Stmt:
            value = tirx.Cast(scan.dtype, tirx.BufferLoad(scan.source, [*place, i]))
            take = tirx.BufferStore(total, held + value, [index(0)])
            put = tirx.BufferStore(
                scan.target, tirx.Cast(str(scan.target.dtype), held), [*place, i]
            )
            return sequence([put, take] if scan.is_exclusive else [take, put])

        start = tirx.BufferStore(total, tirx.const(0, scan.dtype), [index(0)])
        return block("row", sequence([start, loop("i", scan.length, element)]), [total])

    return tasks(product(scan.rows), row)
