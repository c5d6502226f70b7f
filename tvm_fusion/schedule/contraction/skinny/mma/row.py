"""The row of A of a skinny GEMM on tensor cores, in shared memory in fragment order.

    load:   thread t loads tiles t, t + threads, .. of A[k]    global -> registers
    store:  fragment order -> shared[tile, k], vectors rotated by the tile's number, barrier
    load_fragment:  shared[tile] -> a_frag                     all groups of a warp read the same

Behind a norm prologue, between loading and storing:

    sum:    of what a thread loaded, over its warp by shuffles, over warps in shared memory
    store:  A * scale(sum), rounded as the norm's result is

Every warp needs all of a few steps' k, so a block loads and orders the row once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tvm import DataType, ir, tirx

from ....._tvm.ir.buffer import scratch
from .....core.tir.expressions import load
from .....core.tir.loops import index, local, loop, sequence, substitute, unrolled, when
from ....gpu.launch import VECTOR_BYTES
from ....gpu.memory.vector_loads import VectorLoad
from ....gpu.registers.buffers import RegisterBuffers
from ....gpu.threads.warp import LANES, lane_of, warp_all_reduce, warp_of
from .config import SkinnyMmaConfig


class SharedA:
    """Tiles of a row of A in shared memory, each in fragment order.

    Parameters
    ----------
    config
        A product of one row.
    values
        The elements of a tile in fragment order, over variables that stand for elements.
    terms
        Of the sum of a norm prologue, for the elements of a tile.

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
        terms: Sequence[ir.Expr] = (),
    ) -> None:
        self._config, self._block, self._values, self._terms = config, block, values, terms
        self._tiles = int(config.k_tiles)
        self._rounds = -(-self._tiles // config.threads)
        self._registers = RegisterBuffers(vectors, self._rounds, config.threads)
        tile_k = config.tile.k
        self._vector_size = min(tile_k, VECTOR_BYTES // DataType(config.half).itemsize)
        self._ordered = local("a_ordered", [config.threads, tile_k], config.half)
        shape = [index(self._tiles), index(tile_k)]
        self._shared = scratch(shape, config.half, "a_shared", scope="shared")
        self.buffers = [*self._registers.arrays, self._ordered, self._shared]
        if config.norm_scale is not None:
            one = [index(config.threads), index(1)]
            names = ("row_sum", "exchanged_sum", "row_scale")
            self._sum, self._exchanged, self._scale = (
                scratch(one, "float32", name, scope="local") for name in names
            )
            warps = [index(config.row_sums)]
            self._warp_sums = scratch(warps, "float32", "warp_sums", scope="shared")
            self.buffers += [self._sum, self._exchanged, self._scale, self._warp_sums]

    @classmethod
    def of(
        cls,
        config: SkinnyMmaConfig,
        block: ir.Expr,
        values: Sequence[ir.Expr],
        vectors: Sequence[VectorLoad],
        terms: Sequence[ir.Expr],
    ) -> SharedA | None:
        """Plan the staging; ``None`` for several rows, or a row that is too long."""
        return cls(config, block, values, vectors, terms) if config.shared_row_bytes else None

    def stmts(self) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
        """Write what loads the row, and what stores it."""
        phase = self._config.phase
        sums: list[tirx.Stmt] = []
        if self._config.norm_scale is not None:
            buffers = self._sum, self._exchanged
            exchanges, total = warp_all_reduce(buffers, 1, LANES, LANES, phase)
            share = partial(self._share_sum, total)
            sums = [phase(self._add_terms), *exchanges, phase(share), phase(self._find_scale)]
        return [phase(self._load)], [*sums, phase(self._store)]

    def _add_terms(self, thread: ir.Expr) -> tirx.Stmt:
        """Add up the terms of a thread's tiles."""

        def tile(step: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
            stmts = []
            for term in self._terms:
                held = substitute(self._registers.values(term, step, thread), where)
                total = load(self._sum, [thread, index(0)]) + held
                stmts.append(tirx.BufferStore(self._sum, total, [thread, index(0)]))
            return sequence(stmts)

        zero = tirx.const(0, "float32")
        clear = tirx.BufferStore(self._sum, zero, [thread, index(0)])
        return sequence([clear, self._each_tile(thread, tile)])

    def _share_sum(self, total: ir.Var, thread: ir.Expr) -> tirx.Stmt:
        """Write a warp's sum to shared memory."""
        value = load(total, [thread, index(0)])
        store = tirx.BufferStore(self._warp_sums, value, [warp_of(thread)])
        return when(lane_of(thread) == 0, store)

    def _find_scale(self, thread: ir.Expr) -> tirx.Stmt:
        """Compute the scale of the row from the sums of all warps."""
        config = self._config
        assert config.norm_scale is not None
        total = load(self._warp_sums, [index(0)])
        for warp in range(1, config.slices_k):
            total = total + load(self._warp_sums, [index(warp)])
        first = index(0)
        where = config.axes_at(self._block, first, first, first)
        place = [where[axis.var] for axis in config.contraction.stage.axes]
        scale = config.norm_scale.at(place, total, config.contraction.stage)
        return tirx.BufferStore(self._scale, scale, [thread, first])

    def _load(self, thread: ir.Expr) -> tirx.Stmt:
        """Load a thread's tiles into registers."""

        def tile(step: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
            return self._registers.fill(step, where, None, thread)

        return self._each_tile(thread, tile)

    def _store(self, thread: ir.Expr) -> tirx.Stmt:
        """Store a thread's tiles in shared memory, in fragment order."""

        def tile(step: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
            stmts: list[tirx.Stmt] = []
            for place, value in enumerate(self._values):
                held = substitute(self._registers.values(value, step, thread), where)
                if self._config.norm_scale is not None:
                    scale = load(self._scale, [thread, index(0)])
                    held = tirx.Cast(self._config.half, held * scale)
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
