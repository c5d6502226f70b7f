"""The only row of a product for tensor cores, in shared memory, in the order of fragments.

Every warp needs all of a few steps' terms, and its eight lines the same. A block reads the row once
and before the weights, behind which it would have to wait, and puts it into order once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import DataType, ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ..gpu.launch import VECTOR_BYTES
from ..gpu.register_buffers import Registers
from ..gpu.vector_loads import Vector
from ..loops import index, local, loop, sequence, substitute, unrolled, when
from .skinny_mma_config import FragmentSlim

# Beside what warps add up in shared memory; a thread's part of more would not fit its registers.
ROW_BYTES = 16 * 1024


class StagedTerms:
    """Tiles of a row, each in the order of fragments.

    Parameters
    ----------
    cut : FragmentSlim
        A product of one row.
    number : Expr
        The block.
    values : sequence of Expr
        The terms of a tile in the order of fragments, over variables that stand for elements.
    vectors : sequence of Vector
        These elements.

    Attributes
    ----------
    buffers : list of Var
        What holds them.
    """

    def __init__(
        self,
        cut: FragmentSlim,
        number: ir.Expr,
        values: Sequence[ir.Expr],
        vectors: Sequence[Vector],
    ) -> None:
        self._cut, self._number, self._values = cut, number, values
        self._tiles = int(cut.steps)
        self._rounds = -(-self._tiles // cut.threads)
        self._registers = Registers(vectors, self._rounds, cut.threads)
        terms = cut.tile.terms
        self._lanes = min(terms, VECTOR_BYTES // DataType(cut.half).itemsize)
        self._ordered = local("ordered", [cut.threads, terms], cut.half)
        shape = [index(self._tiles), index(terms)]
        self._shared = scratch(shape, cut.half, "terms", scope="shared")
        self.buffers = [*self._registers.arrays, self._ordered, self._shared]

    @classmethod
    def of(
        cls,
        cut: FragmentSlim,
        number: ir.Expr,
        values: Sequence[ir.Expr],
        vectors: Sequence[Vector],
    ) -> StagedTerms | None:
        """Plan it; ``None`` for several rows, or one that is too long."""
        size = int(cut.steps) * cut.tile.terms * DataType(cut.half).itemsize
        return cls(cut, number, values, vectors) if cut.count == 1 and size <= ROW_BYTES else None

    def read(self, thread: ir.Expr) -> tirx.Stmt:
        """Ask for a thread's tiles."""

        def tile(turn: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
            return self._registers.fill(turn, where, None, thread)

        return self._each(thread, tile)

    def stage(self, thread: ir.Expr) -> tirx.Stmt:
        """Write a thread's tiles where all threads see them."""

        def tile(turn: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
            stmts: list[tirx.Stmt] = []
            for place, value in enumerate(self._values):
                held = substitute(self._registers.values(value, turn, thread), where)
                stmts.append(tirx.BufferStore(self._ordered, held, [thread, index(place)]))

            def lane(own: ir.Expr, shared: ir.Expr) -> tirx.Stmt:
                value = load(self._ordered, [thread, own])
                return tirx.BufferStore(self._shared, value, [where[self._cut.tile.down], shared])

            return sequence([*stmts, self._vectors(where[self._cut.tile.down], lane)])

        return self._each(thread, tile)

    def take(self, tile: ir.Expr, to: ir.Var, thread: ir.Expr, start: ir.Expr) -> tirx.Stmt:
        """Copy a tile into a thread's registers, from a place on."""

        def lane(own: ir.Expr, shared: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(to, load(self._shared, [tile, shared]), [thread, start + own])

        return self._vectors(tile, lane)

    def _each(
        self, thread: ir.Expr, do: Callable[[ir.Expr, Mapping[ir.Var, ir.Expr]], tirx.Stmt]
    ) -> tirx.Stmt:
        """Do something with every tile of a thread, at its place."""

        def one(turn: ir.Expr) -> tirx.Stmt:
            tile, first = turn * self._cut.threads + thread, index(0)
            where = self._cut.place(self._number, first, first, first)
            return when(tile < self._tiles, do(turn, where | {self._cut.tile.down: tile}))

        return unrolled("round", self._rounds, one)

    def _vectors(self, tile: ir.Expr, lane: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Go through a tile's vectors, which neighbouring tiles have in different banks."""
        vectors = self._cut.tile.terms // self._lanes

        def vector(number: ir.Expr) -> tirx.Stmt:
            turned = tirx.floormod(number + tile, index(vectors))
            places = number * self._lanes, turned * self._lanes

            def one(i: ir.Expr) -> tirx.Stmt:
                return lane(*(place + i for place in places))

            return loop("lane", self._lanes, one, tirx.ForKind.VECTORIZED)

        return unrolled("vector", vectors, vector)
