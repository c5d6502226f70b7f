"""Micro-kernels of CPUs: register tiles of accumulators, ``acc[mr, nr] += A[mr, k] * B[k, nr]``.

After Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", ACM TOMS 2008): in
each step a few vectors of B are multiplied by one broadcast element of A for each row, so that
loads are few compared with multiplications, and independent accumulators hide their latency.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tvm import ir, tirx
from tvm.target import Target

from ...core.tir.expressions import load
from ...core.tir.loops import loop, prefetch, sequence
from ...device import Device, device_of

WIDEST = 64  # elements of one vector expression

Element = Callable[[ir.Expr, ir.Expr], ir.Expr]


@dataclass(frozen=True)
class VectorUnit:
    """Vector registers of a CPU."""

    lanes: int  # float32 elements of a register
    registers: int  # their number

    @classmethod
    def of(cls, cpu: Device | Target) -> VectorUnit:
        """Read what a CPU, or the target's, has."""
        device = device_of(cpu)
        # Without fused instructions a product takes a register before it is added.
        count = (device.vector_registers or 16) - (not device.fused_multiply_add)
        return cls((device.fixed_vector_bits or 128) // 32, count)

    def of_bits(self, bits: int) -> VectorUnit:
        """Return the same registers with elements of another width."""
        return VectorUnit(self.lanes * 32 // bits, self.registers)

    def rows(self, vectors: int) -> int:
        """Return the most rows of a tile; accumulators, vectors of B and one element of A fit."""
        return (self.registers - vectors - 1) // vectors


def clear(sums: ir.Var, initial: ir.Expr) -> tirx.Stmt:
    """Set all accumulators of a tile."""
    return each(sums, lambda i, lane: tirx.BufferStore(sums, initial, [i, lane]))


def accumulate(
    sums: ir.Var,
    extent: ir.Expr | int,
    left: Element,
    right: Element,
    prefetched: Callable[[ir.Expr], ir.Expr | None] = lambda k: None,
    before: Callable[[ir.Expr], tirx.Stmt | None] = lambda k: None,
) -> tirx.Stmt:
    """Add ``left(row, k) * right(k, column)`` for all ``k`` below an extent to a tile of sums.

    Parameters
    ----------
    sums
        A buffer of rows by columns in registers (scope ``local``), both constant.
    left
        Gives an element of A: loaded once, broadcast to the row.
    right
        Gives an element of B; adjacent columns are contiguous in memory.
    prefetched
        Gives an element to prefetch in step ``k``, or ``None``.
    before
        Gives what is done before the products of step ``k``, or ``None``.
    """

    def step(k: ir.Expr) -> tirx.Stmt:
        first = before(k)
        sum_ = each(
            sums,
            lambda i, lane: tirx.BufferStore(
                sums, load(sums, [i, lane]) + left(i, k) * right(k, lane), [i, lane]
            ),
        )
        sum_ = sum_ if first is None else sequence([first, sum_])
        return with_prefetch(prefetched(k), sum_)

    return loop("k", extent, step)


def with_prefetch(element: ir.Expr | None, stmt: tirx.Stmt) -> tirx.Stmt:
    """Prefetch an element into the level-2 cache before a statement."""
    return stmt if element is None else sequence([prefetch(element, level=2), stmt])


def each(
    sums: ir.Var, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt], widest: int = WIDEST
) -> tirx.Stmt:
    """Write ``body(row, column)`` for a whole tile: rows unrolled, columns as vectors."""
    rows, columns = (int(d) for d in sums.ty.shape)

    def row(i: ir.Expr) -> tirx.Stmt:
        return in_vectors(columns, lambda lane: body(i, lane), widest)

    return loop("i", rows, row, tirx.ForKind.UNROLLED)


def in_vectors(
    columns: int, body: Callable[[ir.Expr], tirx.Stmt], widest: int = WIDEST
) -> tirx.Stmt:
    """Write ``body(column)`` as vectors of powers of two, which LLVM divides among registers."""
    stmts, start = [], 0
    while start < columns:
        width = min(widest, 1 << ((columns - start).bit_length() - 1))
        vector = partial(_shifted, body, start)
        stmts.append(loop("lane", width, vector, tirx.ForKind.VECTORIZED))
        start += width
    return sequence(stmts)


def _shifted(body: Callable[[ir.Expr], tirx.Stmt], start: int, lane: ir.Expr) -> tirx.Stmt:
    return body(lane + start if start else lane)
