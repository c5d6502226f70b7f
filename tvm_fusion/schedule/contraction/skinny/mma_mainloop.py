"""Main loop of a skinny GEMM on tensor cores, for all warps of a block; operands are swapped.

    step s of warp w is k_tile (s * slices_k + w) * 4 + threadID_in_group, of tile.k
    for s in 0 .. stages - 2:   load(s)                                    prologue
    for s in steps:             load(s + stages - 1);  arrange(s);  mma(s)
    load:     B[part, k_tile, tile_n columns of groupID], A[row n8 * 8 + groupID, k_tile]
    arrange:  b_frag[slot, part, column, k], a_frag[slot, n8, k]           k in fragment order
    mma:      acc[part, n8, pair, 4] += b_frag[pair of columns, 4 k] * a_frag[n8, 4 k]

A thread passes what it loaded in vectors: the order of k is that of the tile, the same for A and B.
Groups beyond M load the last row again; their results are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import DataType, ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import coordinates, index, local, loop, sequence, substitute, unrolled, when
from ...gpu.launch import VECTOR_BYTES
from ...gpu.matrix.mma_sync import mma_m16n8k16
from ...gpu.memory.vector_loads import ElementLoads, VectorLoad
from ...gpu.registers.buffers import RegisterBuffers
from .mma_config import SkinnyMmaConfig, uncast
from .mma_weights import GroupAccumulators, WeightTiles, Where

Phase = Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]


class SkinnyMmaMainloop:
    """The accumulators of a block's warps.

    Attributes
    ----------
    buffers : list of Var
        Buffers of accumulators, tiles and fragments.
    rows : None
        There is no norm prologue.
    """

    rows = None

    def __init__(self, config: SkinnyMmaConfig, block: ir.Expr) -> None:
        self._config, self._block = config, block
        tile, stage = config.tile, config.contraction.stage
        analyzer = tile.analyzer((*stage.axes, *stage.reduce))
        elements = ElementLoads(analyzer)
        self._a_values = [elements.read(tile.at(uncast(config.a), k, 0)) for k in range(tile.k)]
        vectors = elements.vectors()
        self._b = WeightTiles(config, analyzer)
        self._a = RegisterBuffers(vectors, config.stages * config.n8, config.threads)
        ordered = [self._a_values[k] for k in self._b.order]
        self._shared_a = SharedA.of(config, block, ordered, vectors)

        def own(name: str, size: int, dtype: str) -> ir.Var:
            # Lowering drops the thread's number, the first index.
            return local(name, [config.threads, size], dtype)

        self._b_frag = own("b_frag", config.stages * config.parts * tile.n * tile.k, config.half)
        self._a_frag = own("a_frag", config.stages * config.n8 * tile.k, config.half)
        self._acc = own("acc", config.accumulators, "float32")
        self.buffers = [self._acc, self._b_frag, self._a_frag, *self._b.buffers]
        self.buffers += self._a.arrays if self._shared_a is None else self._shared_a.buffers
        self._group: GroupAccumulators | None = None
        if self._b.scales is not None:
            self._group = GroupAccumulators(config, self._b.encodings)
            self.buffers += self._group.buffers

    def stmt(self) -> tirx.Stmt:
        """Write the software pipeline over all steps of the warps."""
        config = self._config
        steps = int(config.k_tiles) // config.mma.c.lanes_per_row // config.slices_k
        slots = config.stages

        def start(thread: ir.Expr) -> tirx.Stmt:
            def one(i: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(self._acc, config.contraction.initial, [thread, i])

            clear = unrolled("i", config.accumulators, one)
            return clear if self._group is None else sequence([clear, self._group.begin(thread)])

        def load_step(step: ir.Expr | int, slot: int) -> tirx.Stmt:
            return self._phase(self._load, index(step), slot % slots)

        def use_step(step: ir.Expr | int, slot: int) -> tirx.Stmt:
            phases = (self._arrange, self._mma)
            return sequence([self._phase(do, index(step), slot % slots) for do in phases])

        def iteration(i: ir.Expr) -> tirx.Stmt:
            stmts = []
            for n in range(slots):
                stmts.append(load_step(i * slots + (n + slots - 1), n + slots - 1))
                stmts.append(use_step(i * slots + n, n))
            return sequence(stmts)

        iterations = (steps - slots + 1) // slots
        stmts = [load_step(n, n) for n in range(slots - 1)]
        if self._shared_a is not None:
            stmts = [config.phase(self._shared_a.load), *stmts, config.phase(self._shared_a.store)]
        stmts += [config.phase(start), loop("step", iterations, iteration)]
        for n in range(iterations * slots, steps):
            if n + slots - 1 < steps:
                stmts.append(load_step(n + slots - 1, n + slots - 1))
            stmts.append(use_step(n, n))
        return sequence(stmts)

    def share_partials(self, rows: range, shared: ir.Var, thread: ir.Expr) -> tirx.Stmt:
        """Write a warp's accumulators of some rows to shared memory."""
        config = self._config
        warp, group, in_group = config.lane_coords(thread)

        def one(number: ir.Expr) -> tirx.Stmt:
            part, n8, column, own = coordinates(number, [1, config.n8, config.tile_n, 2])
            row = n8 * config.mma.n + in_group * 2 + own - rows.start
            place = (row * config.parts + part) * config.block_n + group * config.tile_n + column
            value = load(self._acc, [thread, number])
            inside = tirx.all(row >= 0, row < len(rows))
            return when(inside, tirx.BufferStore(shared, value, [warp, place]))

        return unrolled("i", config.accumulators, one)

    def _phase(self, do: Phase, step: ir.Expr, slot: int) -> tirx.Stmt:
        """Run ``do(thread, slot, k_tile)`` in every thread, for a step of its warp."""
        config = self._config

        def body(thread: ir.Expr) -> tirx.Stmt:
            warp, _, in_group = config.lane_coords(thread)
            k_tile = (step * config.slices_k + warp) * config.mma.c.lanes_per_row + in_group
            return do(thread, index(slot), k_tile)

        return config.phase(body)

    def _load(self, thread: ir.Expr, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Load a tile of B for each part, and the same k of the rows of A."""
        config = self._config

        def b_tile(p: ir.Expr) -> tirx.Stmt:
            return self._b.load(slot * config.parts + p, self._b_place(thread, p, k_tile), thread)

        def a_tile(n8: ir.Expr) -> tirx.Stmt:
            place = self._a_place(thread, n8, k_tile)
            return self._a.fill(slot * config.n8 + n8, place, None, thread)

        loads = [unrolled("part", config.parts, b_tile)]
        if self._shared_a is None:
            loads.append(unrolled("n8", config.n8, a_tile))
        return sequence(loads)

    def _arrange(self, thread: ir.Expr, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Convert loaded tiles to fragments."""
        config, tile_k, weights = self._config, self._config.tile.k, self._b

        def b_frag(p: ir.Expr) -> tirx.Stmt:
            copy, where = slot * config.parts + p, self._b_place(thread, p, k_tile)
            stmts = [weights.dequantize(copy, thread)]
            for column in range(config.tile_n):
                for place, k in enumerate(weights.order):
                    value = weights.value(column, k, copy, where, thread)
                    mine = (copy * config.tile_n + column) * tile_k + place
                    stmts.append(tirx.BufferStore(self._b_frag, value, [thread, mine]))
            return sequence(stmts)

        def a_frag(n8: ir.Expr) -> tirx.Stmt:
            copy, where, stmts = slot * config.n8 + n8, self._a_place(thread, n8, k_tile), []
            for place, k in enumerate(weights.order):
                held = self._a.values(self._a_values[k], copy, thread)
                mine = [thread, copy * tile_k + place]
                stmts.append(tirx.BufferStore(self._a_frag, substitute(held, where), mine))
            return sequence(stmts)

        parts = unrolled("part", config.parts, b_frag)
        if self._shared_a is not None:
            loaded = self._shared_a.load_fragment(k_tile, self._a_frag, thread, slot * tile_k)
            return sequence([parts, loaded])
        return sequence([parts, unrolled("n8", config.n8, a_frag)])

    def _mma(self, thread: ir.Expr, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Multiply fragments; sums of a quantization group are scaled before they are added."""
        config, tile_k = self._config, self._config.tile.k
        pairs, count = config.tile_n // 2, config.accumulators // config.parts
        mma_k, sums = config.mma.k_per_lane, config.mma.c.per_lane

        def part(p: ir.Expr) -> tirx.Stmt:
            copy, where = slot * config.parts + p, self._b_place(thread, p, k_tile)

            def b_frag(column: ir.Expr | int, chunk: ir.Expr | int) -> ir.TensorLoad:
                place = (copy * config.tile_n + column) * tile_k + chunk * mma_k
                return load(self._b_frag, [thread, place])

            def a_frag(n8: ir.Expr, chunk: ir.Expr | int) -> ir.TensorLoad:
                place = (slot * config.n8 + n8) * tile_k + chunk * mma_k
                return load(self._a_frag, [thread, place])

            def mma(number: ir.Expr) -> tirx.Stmt:
                chunk, n8, pair = coordinates(number, [1, config.n8, pairs])
                acc = load(self._acc, [thread, p * count + (n8 * pairs + pair) * sums])
                columns = [b_frag(pair * 2 + side, chunk) for side in range(2)]
                return mma_m16n8k16(config.half, acc, columns, a_frag(n8, chunk))

            if self._group is None or self._b.scales is None:
                return unrolled("mma", tile_k // mma_k * config.n8 * pairs, mma)
            stmts = [self._group.multiply(thread, b_frag, a_frag)]
            for number in range(count):
                column = number // 2 % config.tile_n
                value = self._group.value(thread, number, column)
                scaled = value * self._b.scales[column](copy, where, thread)
                mine = [thread, p * count + number]
                stmts.append(tirx.BufferStore(self._acc, load(self._acc, mine) + scaled, mine))
            return sequence(stmts)

        return unrolled("part", config.parts, part)

    def _b_place(self, thread: ir.Expr, part: ir.Expr, k_tile: ir.Expr) -> Where:
        """Return the place of a thread's tile of B; groups beyond N load the last columns again."""
        n_tile = self._config.clamp_n(self._block, self._config.lane_coords(thread)[1])
        return self._at(index(0), part, n_tile, k_tile)

    def _a_place(self, thread: ir.Expr, n8: ir.Expr, k_tile: ir.Expr) -> Where:
        """Return the place of a group's row of A."""
        m, rows = self._config.m, self._config.mma.n
        row = n8 * rows + self._config.lane_coords(thread)[1]
        row = row if m % rows == 0 else tirx.min(row, index(m - 1))
        return self._at(row, index(0), index(0), k_tile)

    def _at(self, row: ir.Expr, part: ir.Expr, n_tile: ir.Expr, k_tile: ir.Expr) -> Where:
        place = self._config.axes_at(self._block, row, part, n_tile)
        return place | {self._config.tile.k_tile: k_tile}


# The A tile of a skinny GEMM with one row on tensor cores, in shared memory in fragment order.
#
#     load:   thread t loads tiles t, t + threads, .. of A[k]    global -> registers, before B's
#     loads
#     store:  fragment order -> shared[tile, k], vectors rotated by the tile's number, barrier
#     load_fragment:  shared[tile] -> a_frag                     all groups of a warp read the same
#
# Every warp needs all of a few steps' k, so a block loads and orders the row once.
class SharedA:
    """Tiles of a row of A in shared memory, each in fragment order.

    Parameters
    ----------
    config
        A product of one row.
    values
        The elements of a tile in fragment order, over variables that stand for elements.

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
