"""The innermost loops of products on a CPU: a tile of sums that stays in vector registers.

After Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", ACM TOMS 2008): in
each step a few vectors of one operand meet one element for each row of the other, so that loads are
few beside the multiplications, and independent sums hide the latency of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import tvm
from tvm import ir, tirx
from tvm.target import Target

from ..core.expressions import load
from ..core.loops import loop, prefetch, sequence

WIDEST = 64  # elements of one vector expression

Element = Callable[[ir.Expr, ir.Expr], ir.Expr]


@dataclass(frozen=True)
class VectorUnit:
    """Vector registers of a CPU.

    Attributes
    ----------
    lanes : int
        float32 elements of one register.
    registers : int
        How many there are.
    """

    lanes: int
    registers: int

    @classmethod
    def of(cls, target: Target) -> VectorUnit:
        """Read LLVM's features of the target's CPU, never this machine's."""
        features = {str(f) for f in tvm.get_global_func("target.llvm_get_cpu_features")(target)}
        if "avx512f" in features:
            return cls(16, 32)
        if "avx" in features:
            return cls(8, 16)
        # Without fused instructions a product takes a register before it is added.
        return cls(4, 32 if "neon" in features else 15)

    def of_bits(self, bits: int) -> VectorUnit:
        """Fill the same registers with wider or narrower elements."""
        return VectorUnit(self.lanes * 32 // bits, self.registers)

    def rows(self, vectors: int) -> int:
        """Tell the most rows of a tile: sums, the vectors of a step and one element fit."""
        return (self.registers - vectors - 1) // vectors


def clear(sums: ir.Var, initial: ir.Expr) -> tirx.Stmt:
    """Set all sums of a tile, a buffer of rows by columns in registers."""
    return each(sums, lambda i, lane: tirx.BufferStore(sums, initial, [i, lane]))


def accumulate(
    sums: ir.Var,
    extent: ir.Expr | int,
    left: Element,
    right: Element,
    ahead: Callable[[ir.Expr], ir.Expr | None] = lambda k: None,
) -> tirx.Stmt:
    """Add ``left(row, k) * right(k, column)`` for all ``k`` below an extent to a tile of sums.

    Parameters
    ----------
    sums : Var
        A buffer of rows by columns in registers (scope ``local``), both constant.
    extent : PrimExpr
        Terms.
    left : callable
        One element for a row: read once, used for the whole row.
    right : callable
        Neighbouring columns lie side by side in memory.
    ahead : callable, optional
        What to read ahead in step ``k``: an element of what comes next, or ``None``.
    """

    def step(k: ir.Expr) -> tirx.Stmt:
        sum_ = each(
            sums,
            lambda i, lane: tirx.BufferStore(
                sums, load(sums, [i, lane]) + left(i, k) * right(k, lane), [i, lane]
            ),
        )
        return asking(ahead(k), sum_)

    return loop("k", extent, step)


def asking(element: ir.Expr | None, stmt: tirx.Stmt) -> tirx.Stmt:
    """Ask the level-2 cache for an element of what comes next, then go on."""
    return stmt if element is None else sequence([prefetch(element, level=2), stmt])


def each(sums: ir.Var, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Write ``body(row, column)`` for a whole tile: rows unrolled, columns as vectors."""
    rows, columns = (int(d) for d in sums.ty.shape)
    return loop(
        "i", rows, lambda i: in_vectors(columns, lambda lane: body(i, lane)), tirx.ForKind.UNROLLED
    )


def in_vectors(columns: int, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Write ``body(column)`` as vectors of powers of two, which LLVM divides among registers."""
    stmts, start = [], 0
    while start < columns:
        width = min(WIDEST, 1 << ((columns - start).bit_length() - 1))
        vector = partial(_shifted, body, start)
        stmts.append(loop("lane", width, vector, tirx.ForKind.VECTORIZED))
        start += width
    return sequence(stmts)


def _shifted(body: Callable[[ir.Expr], tirx.Stmt], start: int, lane: ir.Expr) -> tirx.Stmt:
    return body(lane + start if start else lane)
