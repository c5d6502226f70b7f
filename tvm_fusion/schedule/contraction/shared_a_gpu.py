"""The A tile of a skinny GEMM with one row on tensor cores, in shared memory in fragment order.

    load:   thread t loads tiles t, t + threads, .. of A[k]    global -> registers, before B's loads
    store:  fragment order -> shared[tile, k], vectors rotated by the tile's number, barrier
    load_fragment:  shared[tile] -> a_frag                     all groups of a warp read the same

Every warp needs all of a few steps' k, so a block loads and orders the row once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import DataType, ir, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import index, local, loop, sequence, substitute, unrolled, when
from ..gpu.launch import VECTOR_BYTES
from ..gpu.register_buffers import RegisterBuffers
from ..gpu.vector_loads import VectorLoad
from .skinny_mma_config import SkinnyMmaConfig


class SharedA:
    """Tiles of a row of A in shared memory, each in fragment order.

    Parameters
    ----------
    config : SkinnyMmaConfig
        A product of one row.
    block : Expr
        The block.
    values : sequence of Expr
        The elements of a tile in fragment order, over variables that stand for elements.
    vectors : sequence of VectorLoad
        The loads of these.

    Attributes
    ----------
    buffers : list of Var
        Registers and shared memory.
    """

    def __init__(
        self,
        config: SkinnyMmaConfig,
        block: ir.Expr,
        values: Sequence[ir.Expr],
        vectors: Sequence[VectorLoad],
    ) -> None:
        self._config, self._block, self._values = config, block, values
        self._tiles = int(config.k_tiles)
        self._rounds = -(-self._tiles // config.threads)
        self._registers = RegisterBuffers(vectors, self._rounds, config.threads)
        tile_k = config.tile.k
        self._vector_size = min(tile_k, VECTOR_BYTES // DataType(config.half).itemsize)
        self._ordered = local("a_ordered", [config.threads, tile_k], config.half)
        shape = [index(self._tiles), index(tile_k)]
        self._shared = scratch(shape, config.half, "a_shared", scope="shared")
        self.buffers = [*self._registers.arrays, self._ordered, self._shared]

    @classmethod
    def of(
        cls,
        config: SkinnyMmaConfig,
        block: ir.Expr,
        values: Sequence[ir.Expr],
        vectors: Sequence[VectorLoad],
    ) -> SharedA | None:
        """Plan the staging; ``None`` for several rows, or a row that is too long."""
        return cls(config, block, values, vectors) if config.shared_row_bytes else None

    def load(self, thread: ir.Expr) -> tirx.Stmt:
        """Load a thread's tiles into registers."""

        def tile(step: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
            return self._registers.fill(step, where, None, thread)

        return self._each_tile(thread, tile)

    def store(self, thread: ir.Expr) -> tirx.Stmt:
        """Store a thread's tiles in shared memory, in fragment order."""

        def tile(step: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
            stmts: list[tirx.Stmt] = []
            for place, value in enumerate(self._values):
                held = substitute(self._registers.values(value, step, thread), where)
                stmts.append(tirx.BufferStore(self._ordered, held, [thread, index(place)]))
            number = where[self._config.tile.k_tile]

            def lane(own: ir.Expr, shared: ir.Expr) -> tirx.Stmt:
                value = load(self._ordered, [thread, own])
                return tirx.BufferStore(self._shared, value, [number, shared])

            return sequence([*stmts, self._each_vector(number, lane)])

        return self._each_tile(thread, tile)

    def load_fragment(
        self, tile: ir.Expr, to: ir.Var, thread: ir.Expr, start: ir.Expr
    ) -> tirx.Stmt:
        """Load a tile from shared memory into a thread's registers, from a place on."""

        def lane(own: ir.Expr, shared: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(to, load(self._shared, [tile, shared]), [thread, start + own])

        return self._each_vector(tile, lane)

    def _each_tile(
        self, thread: ir.Expr, do: Callable[[ir.Expr, Mapping[ir.Var, ir.Expr]], tirx.Stmt]
    ) -> tirx.Stmt:
        """Write ``do(step, place)`` for every tile of a thread."""

        def one(step: ir.Expr) -> tirx.Stmt:
            tile, first = step * self._config.threads + thread, index(0)
            where = self._config.axes_at(self._block, first, first, first)
            return when(tile < self._tiles, do(step, where | {self._config.tile.k_tile: tile}))

        return unrolled("round", self._rounds, one)

    def _each_vector(
        self, tile: ir.Expr, lane: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Go through a tile's vectors, rotated so that adjacent tiles use different banks."""
        vectors = self._config.tile.k // self._vector_size

        def vector(number: ir.Expr) -> tirx.Stmt:
            rotated = tirx.floormod(number + tile, index(vectors))
            places = number * self._vector_size, rotated * self._vector_size

            def one(i: ir.Expr) -> tirx.Stmt:
                return lane(*(place + i for place in places))

            return loop("lane", self._vector_size, one, tirx.ForKind.VECTORIZED)

        return unrolled("vector", vectors, vector)
