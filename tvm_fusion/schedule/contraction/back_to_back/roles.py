"""Roles of two GEMMs back to back: a producer of weights and rows, consumers that multiply twice.

warpgroup 0, one thread:   copy W1 and W2, which stay                         TMA, 128-byte swizzle
  for tile = block, block + grid, ..:
    wait(empty[stage]); copy 64 rows of X; they arrive at full[stage]
the others, consumers, each with every consumers-th of these tiles:
  for chunk of H's columns:
    sums = X * W1[chunk]                                                      wgmma, both shared
    load what the chunk's epilogue reads                                      global, in vectors
    behind the last chunk: arrive(empty[stage])
    fragments = epilogue(sums), rounded to H's type                           (hidden_fragments)
    acc += fragments * W2[chunk]       runs while the next chunk's sums      wgmma, A in registers
  epilogue: results in vectors, from registers                                (direct_epilogue)
"""

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    constant,
    coordinates,
    index,
    kernel,
    local,
    loop,
    sequence,
    threads,
    unrolled,
    when,
)
from ....program.program import Program
from ...gpu.launch import PREFETCHED, dependents_launch, min_blocks_per_sm
from ...gpu.matrix import wgmma
from ...gpu.matrix.warp_specialized import persistent_tiles, warp_specialized
from ...gpu.matrix.wgmma import K
from ...gpu.memory import mbarrier, tma
from ...gpu.memory.pipeline import Barriers, Ring, RingPosition, initialize
from ...gpu.memory.shared_tiles import touch
from ...gpu.memory.tma import PANEL
from ...gpu.threads.warp import lane_of
from ..tile.grid import TilePlace
from ..tile.results.results import VectorResults
from ..tile.results.vectors import ResultVectors
from ..tile.shape import M16
from ..wgmma.direct_epilogue import DirectEpilogue
from ..wgmma.operands.matrix import TmaOperand
from .config import BackToBackConfig

# Hidden columns of two GEMMs back to back: sums of the first, as fragments of A of the second.
#
#     before the first product is waited for:
#       for tile of 8 columns, for the two rows of a thread:
#         load what the two columns of a thread read                            global, in vectors
#     behind it:
#       fragments[k16, row, column tile, 2] = epilogue(sums), of H's type       registers
#       zeros beyond the last column
#
# Accumulators of 16 columns lie as a fragment of A of 16 terms does: groupID + 8 * row, 2 * quad +
# 8 * column tile.

PAIR = 2  # adjacent columns of an accumulator


class HiddenFragments:
    """Computes a chunk of the hidden columns.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    first : TensorLoad
        The first element of the fragments.
    """

    def __init__(self, config: BackToBackConfig) -> None:
        self._config = config
        extent = constant(config.first.problem.n_axes[-1].extent) or 1
        self._width = PAIR if extent % PAIR == 0 else 1
        in_row = config.first.problem.mma.c.lanes_per_row
        self._pairs = config.chunk // PAIR // in_row * 2  # of both rows of a thread
        vectors = ResultVectors(self._width, False)
        self._results = VectorResults(config.first, vectors, self._pairs * PAIR // self._width)
        (result,) = config.first.problem.contraction.results
        self._made = self._results.made[result.buffer]
        dtype = str(result.buffer.ty.dtype)
        self._fragments = local("fragments", [self._pairs * PAIR], dtype)
        self.first = load(self._fragments, [index(0)])
        self.buffers = [self._fragments, *self._results.buffers]

    def loads(self, place: TilePlace, thread: ir.Expr, chunk: ir.Expr) -> tirx.Stmt:
        """Load what the epilogue of a chunk reads."""
        if not self._results.reads:
            return sequence([])

        def one(i: ir.Expr) -> tirx.Stmt:
            stmts = []
            for number in range(PAIR // self._width):
                copy = i * (PAIR // self._width) + number
                where, _ = self._where(place, thread, chunk, i, number * self._width)
                stmts.append(self._results.load(copy, where))
            return sequence(stmts)

        return unrolled("pair", self._pairs, one)

    def stmt(self, sums: ir.Var, place: TilePlace, thread: ir.Expr, chunk: ir.Expr) -> tirx.Stmt:
        """Compute the fragments of a chunk of the sums."""
        config, width = self._config, self._width
        count = config.first.problem.mma.c.per_lane

        def one(i: ir.Expr) -> tirx.Stmt:
            n8, row = coordinates(i, [index(self._pairs // 2), 2])
            k16, tile = coordinates(n8, [index(config.chunk // K), 2])
            to = ((k16 * 2 + row) * 2 + tile) * PAIR
            stmts = []
            for first in range(0, PAIR, width):
                where, column = self._where(place, thread, chunk, i, first)

                def total(_: int, lane: int, first: int = first) -> ir.Expr:
                    return load(sums, [n8 * count + row * PAIR + first + lane])

                copy = i * (PAIR // width) + first // width
                stmts.append(self._results.compute(copy, where, total))
                for lane in range(width):
                    value: ir.Expr = load(self._made, [index(lane)])
                    for inside in config.first.grid.column_bounds(chunk, column + lane):
                        value = tirx.Select(inside, value, tirx.const(0, str(value.ty.dtype)))
                    stmts.append(tirx.BufferStore(self._fragments, value, [to + first + lane]))
            return sequence(stmts)

        whole = touch(self._fragments, self._pairs * PAIR - 1)
        return sequence([whole, unrolled("pair", self._pairs, one)])

    def _where(
        self, place: TilePlace, thread: ir.Expr, chunk: ir.Expr, i: ir.Expr, lane: int
    ) -> tuple[dict[ir.Var, ir.Expr], ir.Expr]:
        """Return the axes at columns, or at the last that exist, and their place in the chunk."""
        first = self._config.first
        mma, c = first.problem.mma, first.problem.mma.c
        warp, in_warp = coordinates(thread, [index(1), mma.lanes])
        own_row, own_column = c.of_lane(in_warp)
        down, _ = c.of_register(c.run)  # from a lane's first row to the other
        n8, half = coordinates(i, [index(self._pairs // 2), 2])
        row, column = warp * M16 + half * down + own_row, n8 * mma.n + own_column + lane
        rows = first.problem.axes_at(()) | first.grid.row_at(place.m_tile, row, is_clamped=True)
        return rows | first.grid.column_at(chunk, column, clamped=self._width), column


class Roles:
    """What the threads of a block do.

    Parameters
    ----------
    maps
        Tensor maps of X, W1 and W2.
    number, thread
        Of the block and the thread.
    shared
        Shared memory, bytes.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    """

    def __init__(
        self,
        config: BackToBackConfig,
        maps: list[ir.Var],
        number: ir.Expr,
        thread: ir.Expr,
        shared: ir.Var,
    ) -> None:
        self._config, self._maps, self._number, self._thread = config, maps, number, thread
        self._shared = shared
        self._sums = local("sums", [config.chunk // 2], config.first.problem.contraction.dtype)
        self._acc = local(
            "acc", [config.second.tile.block_n // 2], config.second.problem.contraction.dtype
        )
        self._hidden = HiddenFragments(config)
        self._weights = Barriers(shared, config.barrier_offset, 1, 1)
        at = RingPosition(config.stages)
        self._ring = Ring(shared, self._weights.end, (1, wgmma.WARPS), at)
        self.buffers = [self._sums, self._acc, at.buffer, *self._hidden.buffers]

    def initialize(self) -> tirx.Stmt:
        """Initialize the barriers, and prefetch tensor maps; one thread does."""
        stmts = [tma.prefetch(m) for m in self._maps]
        return sequence([*stmts, *initialize([self._weights], self._ring.barriers)])

    def produce(self) -> tirx.Stmt:
        """Copy both weights, then tiles of rows: one thread of the warpgroup."""
        config, ring, at = self._config, self._ring, self._ring.at
        (x, w1), w2 = config.first.operands, config.w2
        weights = self._weights[0]

        def tile(_step: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            full = ring.full[at.stage]
            copies = []
            for k in range(config.k_tiles):
                place = at.stage * config.stage_bytes + config.weight_bytes + k * x.bytes
                copies += self._copy(x, 0, place, full, number * wgmma.M, k * PANEL)
            expect = mbarrier.expect_bytes(full, config.stage_bytes)
            return sequence([ring.acquire(), expect, *copies, *at.advance(1)])

        def chunk(c: ir.Expr) -> tirx.Stmt:
            first, copies = c * config.chunk, []
            for k in range(config.k_tiles):
                place = self._w1(c, k)
                copies += self._copy(w1, 1, place, weights, first, k * PANEL)
            for k in range(config.w2_tiles):
                place, term = self._w2(c, k), first + k * w2.block_k
                copies += self._copy(w2, 2, place, weights, index(0), term)
            return sequence(copies)

        whole = [
            mbarrier.expect_bytes(weights, config.weight_bytes),
            loop("chunk", config.chunks, chunk),
            *at.start(),
            persistent_tiles(config.tiles, config.blocks, self._number, tile),
        ]
        return when(self._thread.equal(0), sequence(whole))

    def consume(self, group: ir.Expr) -> tirx.Stmt:
        """Multiply twice, and store results: the warpgroups behind the first."""
        config, at, own = self._config, self._ring.at, tirx.Cast("int64", group)
        skip = [when(own >= i, sequence(at.advance(1))) for i in range(1, config.consumers)]
        tiles = persistent_tiles(
            config.tiles,
            config.blocks,
            self._number,
            lambda _step, number: self._rows(number),
            (own, config.consumers),
        )
        weights = self._weights.wait(0, index(0))
        return sequence([*at.start(), *skip, weights, tiles, dependents_launch()])

    def _rows(self, number: ir.Expr) -> tirx.Stmt:
        """Compute a tile of rows."""
        config, ring, acc = self._config, self._ring, self._acc
        place = TilePlace((), number, index(0), index(0))
        epilogue = DirectEpilogue(config.second, place, acc, index(0))
        lane = tirx.floormod(self._thread, index(wgmma.THREADS))
        fragments, words = self._hidden.first, config.chunk // 4
        count = config.second.tile.block_n // 2

        def chunk(c: ir.Expr) -> tirx.Stmt:
            release = ring.release(lane_of(self._thread), ring.at.stage)
            made = self._hidden.stmt(self._sums, place, lane, c)
            return sequence(
                [
                    self._first_product(c),
                    self._hidden.loads(place, lane, c),
                    wgmma.wait_for(
                        load(self._sums, [index(0)]), config.chunk // 2, 0, (fragments, words)
                    ),
                    when(c.equal(config.chunks - 1), release),
                    made,
                    self._second_product(c),
                ]
            )

        zero = tirx.const(0, config.second.problem.contraction.dtype)
        clear = [loop("i", count, lambda i: tirx.BufferStore(acc, zero, [i]))]
        rows = epilogue.row_values(lane)
        stmts = [
            touch(acc, count - 1),
            touch(self._sums, config.chunk // 2 - 1),
            ring.wait(),
            *(clear if config.chunks > 1 else []),
            loop("chunk", config.chunks, chunk),
            *rows,
            epilogue.prologue(lane),
            wgmma.wait_for(load(acc, [index(0)]), count, 0, (fragments, words)),
            *ring.at.advance(config.consumers),
            epilogue.stmt(lane),
        ]
        return block("rows", sequence(stmts), epilogue.buffers)

    def _first_product(self, c: ir.Expr) -> tirx.Stmt:
        """Issue the sums of a chunk of the hidden columns."""
        config = self._config
        x, w1 = config.first.operands
        problem, sums = config.first.problem, load(self._sums, [index(0)])
        types = problem.a_dtype, problem.b_dtype
        stmts: list[tirx.Stmt] = []
        products: list[tirx.Stmt] = []
        rows = self._ring.at.stage * config.stage_bytes + config.weight_bytes
        for k in range(config.k_tiles):
            sides = []
            places = (x, rows + k * x.bytes), (w1, self._w1(c, k))
            for name, (operand, place) in zip(("of_x", "of_w1"), places, strict=True):
                sides.append((operand.layout, tirx.Var(name, "uint64")))
                stmts.append(tirx.Bind(sides[-1][1], operand.layout.descriptor(self._at(place))))
            for k16 in range(-(-min(PANEL, config.first.problem.k - k * PANEL) // wgmma.K)):
                a, b = ((s, d + tirx.const(s.step(k16), "uint64")) for s, d in sides)
                is_added = tirx.const(k + k16 > 0)
                products.append(wgmma.multiply(types, config.chunk, sums, a, b, is_added))
        return sequence([*stmts, wgmma.fence(), *products, wgmma.commit()])

    def _second_product(self, c: ir.Expr) -> tirx.Stmt:
        """Issue the product of a chunk's fragments."""
        config, w2 = self._config, self._config.w2
        return wgmma.multiply_fragments(
            config.second.problem.a_dtype,
            config.second.tile.block_n,
            config.chunk,
            load(self._acc, [index(0)]),
            self._hidden.first,
            (w2.layout, self._at(self._w2(c, 0))),
            is_added=config.chunks > 1,
            is_waited_for=False,
        )

    def _copy(
        self,
        operand: TmaOperand,
        number: int,
        place: ir.Expr,
        bar: ir.TensorLoad,
        first: ir.Expr,
        k: ir.Expr | int,
    ) -> list[tirx.Stmt]:
        """Copy the boxes of a tile of an operand."""
        return [
            tma.load(self._at(place + at), self._maps[number], bar, where)
            for at, _, where in operand.boxes({}, [first], index(k))
        ]

    def _w1(self, c: ir.Expr, k: int) -> ir.Expr:
        return c * self._config.w1_bytes + k * self._config.first.operands[1].bytes

    def _w2(self, c: ir.Expr, k: int) -> ir.Expr:
        each, behind = self._config.w2.bytes, self._config.chunks * self._config.w1_bytes
        return c * (self._config.w2_tiles * each) + (behind + k * each)

    def _at(self, place: ir.Expr) -> ir.TensorLoad:
        return load(self._shared, [place])


# Two GEMMs back to back on Hopper: the hidden rows between them stay in registers.
#
# block in grid of at most as many as run at once: W1, W2, stages[stage] of X; barriers weights,
# full[stage], empty[stage] shared warpgroup 0, the producer: copies both weights, which stay, then
# tiles of rows the others: multiply twice, and store results (below)
def back_to_back_gpu(program: Program, config: BackToBackConfig) -> tirx.PrimFunc:
    """Make the kernel, which says that both weights may be asked for beforehand."""
    x, w1 = config.first.operands
    maps, encode = [], []
    for name, operand in (("map_x", x), ("map_w1", w1), ("map_w2", config.w2)):
        variable, stmts = operand.maps[0].encode(name)
        maps.append(variable)
        encode += stmts
    grid = threads(
        "blockIdx.x",
        config.blocks,
        lambda number: min_blocks_per_sm(_block(config, maps, number), 1),
    )
    func = kernel(program, grid, encode)
    weights = [operand.maps[0].buffer for operand in (w1, config.w2)]
    numbers = [n for n, p in enumerate(func.params) if any(p.same_as(w) for w in weights)]
    return func.with_attr(PREFETCHED, numbers)


def _block(config: BackToBackConfig, maps: list[ir.Var], number: ir.Expr) -> tirx.Stmt:
    shared = tma.shared_tiles(config.shared_bytes, "uint8", "resident")

    def of_thread(thread: ir.Expr) -> tirx.Stmt:
        roles = Roles(config, maps, number, thread, shared)
        stmts = warp_specialized(
            thread,
            roles.initialize(),
            lambda _group: roles.produce(),
            roles.consume,
            registers=wgmma.MOVED_REGISTERS[config.consumers],
        )
        return block("back_to_back", sequence(stmts), roles.buffers)

    return block("grid", threads("threadIdx.x", config.threads, of_thread), [shared])
