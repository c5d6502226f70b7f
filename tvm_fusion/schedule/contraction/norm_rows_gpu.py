"""The small factor of a product, computed into shared memory before the product walks over it.

Rows that a norm scales need a sum over each of them, and weights of their own. Every block computes
them once, for a few thousand terms, where the walk would compute them for each column again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ...fusion.program import Axis
from ..gpu.register_buffers import Registers
from ..gpu.vector_loads import Elements
from ..loops import (
    Body,
    block,
    ceildiv,
    coordinates,
    index,
    local,
    product,
    sequence,
    substitute,
    unrolled,
    when,
)
from .gemv_config import Slim
from .thread_tile import Tile

LANES = (8, 4, 2, 1)  # terms that a thread reads of a row at once
FOLDED = 32  # parts of a row's sum that are left


@dataclass(frozen=True, eq=False)
class StagedRows:
    """Rows in shared memory, and the sums over them.

    Attributes
    ----------
    cut : Slim
        The product, with a sum over its rows.
    shared : Var
        Of ``[parts, width]``, and at least as large as all rows are.
    partial, folded : Var
        ``[rows, threads]``, what each thread adds up of a row; ``[rows, FOLDED]``, of which there
        are fewer.
    """

    cut: Slim
    shared: ir.Var
    partial: ir.Var
    folded: ir.Var

    @classmethod
    def of(cls, cut: Slim, shared: ir.Var) -> StagedRows | None:
        """Declare what the rows of a product need; ``None`` where no sum scales them."""
        dtype = cut.contraction.dtype
        if cut.row_sum is None:
            return None

        def sums(count: int) -> ir.Var:
            return scratch([index(cut.count), index(count)], dtype, "row_sums", scope="shared")

        return cls(cut, shared, sums(cut.threads), sums(FOLDED))

    @property
    def value(self) -> ir.Expr:
        """The staged factor, over the axes of the product."""
        rows, terms = (_flat(axes) for axes in (self.cut.rows, self.cut.reduce))
        return load(self.shared, self._place(rows, terms))

    def stage(self, number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Compute a thread's part of every row of a block, and of the sum over it."""
        cut = self.cut
        assert cut.row_sum is not None
        terms = product([a.extent for a in cut.reduce])
        some = [Tile(cut.columns, cut.reduce, n, 1, True) for n in LANES]
        tile = next(t for t in some if t.fits())
        stage, dtype = cut.contraction.stage, cut.contraction.dtype
        read = Elements(tile.analyzer((*stage.axes, *stage.reduce)))
        values = [read.read(tile.at(cut.small, i, 0)) for i in range(tile.terms)]
        summands = [read.read(tile.at(cut.row_sum.term, i, 0)) for i in range(tile.terms)]
        registers = Registers(read.vectors(), 1)
        total = local("row_sum", [1], dtype)

        def row(r: ir.Expr) -> tirx.Stmt:
            def step(n: ir.Expr) -> tirx.Stmt:
                which = n * cut.threads + thread
                here = cut.place(number, r, 0, index(0)) | {tile.down: which}

                def known(expr: ir.Expr) -> ir.Expr:
                    return substitute(registers.values(expr, index(0)), here)

                stmts = [registers.fill(index(0), here)]
                for i, (value, summand) in enumerate(zip(values, summands, strict=True)):
                    place = self._place(r, which * tile.terms + i)
                    widened = tirx.Cast(dtype, known(value))
                    stmts.append(tirx.BufferStore(self.shared, widened, place))
                    added = load(total, [index(0)]) + known(summand)
                    stmts.append(tirx.BufferStore(total, added, [0]))
                inside = which * tile.terms < terms
                return when(inside, sequence(stmts))

            steps = ceildiv(terms, tile.terms * cut.threads)
            return sequence(
                [
                    tirx.BufferStore(total, tirx.const(0, dtype), [0]),
                    unrolled("step", steps, step),
                    tirx.BufferStore(self.partial, load(total, [index(0)]), [r, thread]),
                ]
            )

        return block("rows", self._rows(row), [*registers.arrays, total])

    def fold(self, thread: ir.Expr) -> tirx.Stmt:
        """Add up what several threads found of a row, by the first ones of a block."""
        cut = self.cut
        total = local("row_sum", [1], cut.contraction.dtype)

        def row(r: ir.Expr) -> tirx.Stmt:
            def add(n: ir.Expr) -> tirx.Stmt:
                part = load(self.partial, [r, n * FOLDED + thread])
                value = load(total, [index(0)]) + part
                inside = n * FOLDED + thread < cut.threads
                return when(inside, tirx.BufferStore(total, value, [0]))

            return sequence(
                [
                    tirx.BufferStore(total, tirx.const(0, cut.contraction.dtype), [0]),
                    unrolled("part", -(-cut.threads // FOLDED), add),
                    tirx.BufferStore(self.folded, load(total, [index(0)]), [r, thread]),
                ]
            )

        return when(thread < FOLDED, block("fold", self._rows(row), [total]))

    def scale(self, row: ir.Expr, place: list[ir.Expr], total: ir.Var) -> tuple[tirx.Stmt, ir.Expr]:
        """Add the rest of a row's sum up, and express what it makes of the product's sums."""
        cut = self.cut
        assert cut.row_sum is not None

        def add(n: ir.Expr) -> tirx.Stmt:
            value = load(total, [index(0)]) + load(self.folded, [row, n])
            return tirx.BufferStore(total, value, [0])

        start = tirx.BufferStore(total, tirx.const(0, cut.contraction.dtype), [0])
        stmt = sequence([start, unrolled("part", FOLDED, add)])
        return stmt, cut.row_sum.of(place, load(total, [index(0)]), cut.contraction.stage)

    @property
    def buffers(self) -> list[ir.Var]:
        """List what a block has besides ``shared``."""
        return [self.partial, self.folded]

    def _rows(self, body: Body) -> tirx.Stmt:
        return unrolled("row", self.cut.count, body)

    def _place(self, row: ir.Expr, term: ir.Expr) -> list[ir.Expr]:
        flat = row * product([a.extent for a in self.cut.reduce]) + term
        return coordinates(flat, self.shared.ty.shape)


def _flat(axes: Sequence[Axis]) -> ir.Expr:
    """Count the places before one of some axes, row-major."""
    place = index(0)
    for axis in axes:
        place = place * axis.extent + axis.var
    return place
