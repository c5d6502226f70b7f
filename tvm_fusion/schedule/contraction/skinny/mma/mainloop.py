"""Main loop of a skinny GEMM on tensor cores, for all warps of a block; operands are swapped.

    step s of warp w is k_tile (s * slices_k + w) * 4 + threadID_in_group, of tile.k
    for s in 0 .. stages - 2:   load(s)                                    prologue
    for s in steps:             load(s + stages - 1);  arrange(s);  mma(s)
    B constant:                 its first tiles are loaded before the wait for the kernel before
    load:     B[part, k_tile, tile_n columns of groupID], A[row n8 * 8 + groupID, k_tile]
    arrange:  b_frag[slot, part, column, k], a_frag[slot, n8, k]           k in fragment order
    mma:      acc[part, n8, pair, 4] += b_frag[pair of columns, 4 k] * a_frag[n8, 4 k]

A thread passes what it loaded in vectors: the order of k is that of the tile, the same for A and B.
Groups beyond M load the last row again; their results are not stored.
"""

from collections.abc import Callable

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import (
    coordinates,
    index,
    local,
    loop,
    sequence,
    substitute,
    unrolled,
    when,
)
from ....gpu.launch import dependency_wait
from ....gpu.matrix.mma_sync import mma_m16n8k16
from ....gpu.memory.vector_loads import ElementLoads
from ....gpu.registers.buffers import RegisterBuffers
from .config import SkinnyMmaConfig, uncast
from .row import SharedA
from .weights import GroupAccumulators, WeightTiles, Where

Phase = Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]


class SkinnyMmaMainloop:
    """The accumulators of a block's warps.

    Parameters
    ----------
    loads_early
        Whether B is loaded before all kernels before have ended.

    Attributes
    ----------
    buffers : list of Var
        Buffers of accumulators, tiles and fragments.
    rows : None
        A norm prologue leaves no scale to the epilogue.
    """

    rows = None

    def __init__(self, config: SkinnyMmaConfig, block: ir.Expr, loads_early: bool = False) -> None:
        self._config, self._block, self._loads_early = config, block, loads_early
        tile, stage = config.tile, config.contraction.stage
        analyzer = tile.analyzer((*stage.axes, *stage.reduce))
        elements = ElementLoads(analyzer)
        self._a_values = [elements.read(tile.at(uncast(config.a), k, 0)) for k in range(tile.k)]
        norm = config.norm_scale
        terms = [] if norm is None else [tile.at(norm.term, k, 0) for k in range(tile.k)]
        terms = [elements.read(term) for term in terms]
        vectors = elements.vectors()
        self._b = WeightTiles(config, analyzer)
        self._a = RegisterBuffers(vectors, config.stages * config.n8, config.threads)
        ordered = [self._a_values[k] for k in self._b.order]
        self._shared_a = SharedA.of(config, block, ordered, vectors, terms)

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

        def load_b(step: ir.Expr | int, slot: int) -> tirx.Stmt:
            return self._phase(self._load_b, index(step), slot % slots)

        def load_a(step: ir.Expr | int, slot: int) -> tirx.Stmt:
            if self._shared_a is not None:
                return sequence([])
            return self._phase(self._load_a, index(step), slot % slots)

        def load_step(step: ir.Expr | int, slot: int) -> tirx.Stmt:
            return sequence([load_b(step, slot), load_a(step, slot)])

        def use_step(step: ir.Expr | int, slot: int) -> tirx.Stmt:
            phases = (self._arrange_a, self._mma)
            return sequence([self._phase(do, index(step), slot % slots) for do in phases])

        def iteration(i: ir.Expr) -> tirx.Stmt:
            stmts = []
            for n in range(slots):
                stmts.append(load_step(i * slots + (n + slots - 1), n + slots - 1))
                stmts.append(use_step(i * slots + n, n))
            return sequence(stmts)

        is_turned = self._loads_early and slots == 1  # loads behind the use of the step before
        first = range(1 if is_turned else slots - 1)
        loads_b, loads_a = ([do(n, n) for n in first] for do in (load_b, load_a))
        begin, store = ([], []) if self._shared_a is None else self._shared_a.stmts()
        if self._loads_early:
            stmts = [*loads_b, dependency_wait(), *begin, *loads_a, *store, config.phase(start)]
        else:
            stmts = [*begin, *loads_b, *loads_a, *store, config.phase(start)]
        if is_turned:

            def turned(i: ir.Expr) -> tirx.Stmt:
                return sequence([use_step(i, 0), load_step(i + 1, 0)])

            return sequence([*stmts, loop("step", steps - 1, turned), use_step(steps - 1, 0)])
        iterations = (steps - slots + 1) // slots
        stmts.append(loop("step", iterations, iteration))
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

    def _load_b(self, thread: ir.Expr, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Load a tile of B for each part."""
        config = self._config

        def b_tile(p: ir.Expr) -> tirx.Stmt:
            return self._b.load(slot * config.parts + p, self._b_place(thread, p, k_tile), thread)

        return unrolled("part", config.parts, b_tile)

    def _load_a(self, thread: ir.Expr, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Load the same k of the rows of A."""
        config = self._config

        def a_tile(n8: ir.Expr) -> tirx.Stmt:
            place = self._a_place(thread, n8, k_tile)
            return self._a.fill(slot * config.n8 + n8, place, None, thread)

        return unrolled("n8", config.n8, a_tile)

    def _arrange_a(self, thread: ir.Expr, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Convert loaded tiles of A to fragments."""
        config, tile_k = self._config, self._config.tile.k
        if self._shared_a is not None:
            return self._shared_a.load_fragment(k_tile, self._a_frag, thread, slot * tile_k)

        def a_frag(n8: ir.Expr) -> tirx.Stmt:
            copy, where, stmts = slot * config.n8 + n8, self._a_place(thread, n8, k_tile), []
            for place, k in enumerate(self._b.order):
                held = self._a.values(self._a_values[k], copy, thread)
                mine = [thread, copy * tile_k + place]
                stmts.append(tirx.BufferStore(self._a_frag, substitute(held, where), mine))
            return sequence(stmts)

        return unrolled("n8", config.n8, a_frag)

    def _arrange_b(
        self, thread: ir.Expr, slot: ir.Expr, part: ir.Expr, k_tile: ir.Expr
    ) -> tirx.Stmt:
        """Convert a part's loaded tile of B to fragments."""
        config, tile_k, weights = self._config, self._config.tile.k, self._b
        copy, where = slot * config.parts + part, self._b_place(thread, part, k_tile)
        stmts = [weights.dequantize(copy, thread)]
        for column in range(config.tile_n):
            for place, k in enumerate(weights.order):
                value = weights.value(column, k, copy, where, thread)
                mine = (copy * config.tile_n + column) * tile_k + place
                stmts.append(tirx.BufferStore(self._b_frag, value, [thread, mine]))
        return sequence(stmts)

    def _mma(self, thread: ir.Expr, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Multiply fragments, part by part, each converted before.

        Sums of a quantization group are scaled before they are added.
        """
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

            stmts = [self._arrange_b(thread, slot, p, k_tile)]
            if self._group is None or self._b.scales is None:
                every = unrolled("mma", tile_k // mma_k * config.n8 * pairs, mma)
                return sequence([*stmts, every])
            stmts.append(self._group.multiply(thread, b_frag, a_frag))
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
