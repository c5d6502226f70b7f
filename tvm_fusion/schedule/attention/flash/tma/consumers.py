"""Consumers of FlashAttention on Hopper: in which order they multiply and compute softmax.

at their own pace:   for n:  s = q * k(n); softmax; acc += p * v(n)
in turns:            s = q * k(0); softmax
                     for n > 0:  in its turn:  issue s = q * k(n); acc += p * v(n - 1)
                                 maxima and exponentials of s, while acc and the other's turn go on
                                 wait(acc); rescale acc; p
                     in its turn:  acc += p * v(last)

At their own pace, two consumers come to multiply, and to compute softmax, at the same time: 1,174
us instead of 1,084 in turns (4x32x4096x128, causal, 128 keys, on an H200). Scores of the next tile
issued before softmax, with 112 keys as registers allow, took 1,175 where turns took 1,089. Turns
that end with the wait for both products took 1,081 where those that end as the products are issued
take 1,008; one of 256 elements, 2x16x2048, causal, 153 and 144.
"""

import operator

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import block, index, kernel, loop, sequence, simplified, threads, when
from .....program.program import Program
from ....gpu.launch import block_by_address, min_blocks_per_sm
from ....gpu.matrix import wgmma
from ....gpu.matrix.warp_specialized import warp_specialized
from ....gpu.memory import mbarrier, tma
from ....gpu.memory.cp_async import warp_sync
from ....gpu.memory.pipeline import Barriers, Ring, RingPosition, initialize
from ....gpu.memory.shared_tiles import touch
from ....gpu.memory.swizzle import BANKS, VECTOR, PanelRows
from ....gpu.threads.warp import lane_of, warp_of
from ...problem.pattern import FLOAT
from ..epilogue import FlashMmaEpilogue
from ..grid import query_blocks
from ..problem import FlashProblem
from ..products import FlashMmaProducts
from ..softmax import FlashMmaSoftmax
from .config import HALF_BYTES, FlashTmaConfig
from .operand import TmaRows, tma_operands

# Roles of FlashAttention's warpgroups on Hopper: the producer of tiles, products of consumers.
#
# What consumers do, and in which order, stands in tma_consumers. The place
# in the rings of stages is kept in registers.


class Roles(FlashMmaProducts, FlashMmaSoftmax, FlashMmaEpilogue):
    """A thread: as a producer all that it does, as a consumer its products and barriers.

    Parameters
    ----------
    where
        Position of the block along the batch axes.
    first
        The first row of the block.
    warp, lane
        The warp among those of consumers, and its thread.
    shared
        Shared memory, elements of the half type.
    copies
        Of q, k and v: the rows, and the tensor maps.
    """

    _config: FlashTmaConfig

    def __init__(
        self,
        problem: FlashProblem,
        config: FlashTmaConfig,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        warp: ir.Expr,
        lane: ir.Expr,
        shared: ir.Var,
        copies: list[tuple[TmaRows, list[ir.Var]]],
    ) -> None:
        self._given, self._copies = shared, copies
        super().__init__(problem, config, where, first, warp, lane)
        self._at, arrivals = RingPosition(config.stages), (1, config.warps)
        self._queries = Barriers(shared, config.barrier_offset, 1, 1)
        self._keys = Ring(shared, self._queries.end, arrivals, self._at)
        self._values = Ring(shared, self._keys.empty.end, arrivals, self._at)
        turns = config.consumers if config.is_ping_pong else 0
        self._order = Barriers(shared, self._values.empty.end, turns, wgmma.WARPS)

    @property
    def buffers(self) -> list[ir.Var]:
        """Registers."""
        return [*self._buffers, self._at.buffer]

    def _declare(self, name: str, size: int, dtype: str = FLOAT, scope: str = "local") -> ir.Var:
        return self._given if scope != "local" else super()._declare(name, size, dtype, scope)

    def find_limits(self) -> list[tirx.Stmt]:
        """Find which keys the block sees, where rows read that from memory; all threads do."""
        return self._find_limits()

    def initialize(self) -> tirx.Stmt:
        """Initialize the barriers; one thread does."""
        stmts = [tma.prefetch(variable) for _, maps in self._copies for variable in maps]
        rings = *self._keys.barriers, *self._values.barriers
        return sequence([*stmts, *initialize([self._queries], rings, [self._order])])

    def produce(self, is_first: ir.Expr) -> tirx.Stmt:
        """Copy all tiles: one thread of a warpgroup."""
        config, tiles, at = self._config, self._tiles, self._at
        q, k, v = self._copies

        def step(n: ir.Expr) -> tirx.Stmt:
            stmts = []
            for copied, rows, ring in (
                (k, config.k_rows(), self._keys),
                (v, config.v_rows(), self._values),
            ):
                to = index(at.stage) * config.block_n
                copies = self._copy(copied, ring.full[at.stage], rows, to, tiles.start(n))
                stmts += [ring.acquire(), *copies]
            return sequence([*stmts, *at.advance(1)])

        stmts = self._copy(q, self._queries[0], config.q_rows, index(0), self._first)
        stmts += [*at.start(), loop("n", tiles.count, step)]
        return when(is_first, sequence(stmts))

    def _copy(
        self,
        copied: tuple[TmaRows, list[ir.Var]],
        bar: ir.TensorLoad,
        rows: PanelRows,
        to: ir.Expr,
        first: ir.Expr,
    ) -> list[tirx.Stmt]:
        """Copy the panels of a tile into the rows of shared memory from some row on."""
        operand, maps = copied
        size = rows.rows * tma.ROW_BYTES * len(operand.panels)
        stmts = [mbarrier.expect_bytes(bar, size)]
        for panel, (part, places) in enumerate(operand.boxes(self._where, first)):
            start = to * (rows.vectors * 8) + (rows.first * 8 + panel * rows.rows * tma.PANEL)
            stmts.append(tma.load(load(self._shared, [start]), maps[part], bar, places))
        return stmts

    def _multiply_queries(self, group: ir.Expr) -> tirx.Stmt:
        """Issue the product of queries and the tile of keys at hand, as one group."""
        config = self._config
        q = wgmma.Operand(True, config.block_m * tma.ROW_BYTES)
        k = wgmma.Operand(True, config.block_n * tma.ROW_BYTES)
        first = index(group) * (wgmma.M * tma.PANEL)
        key = (
            self._stage(index(self._at.stage)) * (config.k_rows().vectors * 8)
            + config.k_rows().first * 8
        )
        of_q, of_k = (tirx.Var(f"descriptor_{name}", "uint64") for name in "qk")
        stmts = [
            tirx.Bind(of_q, q.descriptor(load(self._shared, [first]))),
            tirx.Bind(of_k, k.descriptor(load(self._shared, [key]))),
            wgmma.fence(),
        ]
        for k16 in range(config.depth16 // wgmma.K):
            left = q, of_q + tirx.const(q.step(k16), "uint64")
            right = k, of_k + tirx.const(k.step(k16), "uint64")
            s, is_added = load(self._s, [index(0)]), tirx.const(k16 > 0)
            types = self._half, self._half
            stmts.append(wgmma.multiply(types, config.block_n, s, left, right, is_added))
        return sequence([*stmts, wgmma.commit()])

    def _wait_for_scores(self, pending: int = 0) -> tirx.Stmt:
        """Wait until so many groups of products are pending at most, not those of scores."""
        return wgmma.wait_for(load(self._s, [index(0)]), self._config.block_n // 2, pending)

    def _wait_for_results(self, is_twin: bool = False) -> tirx.Stmt:
        """Wait for the product with values: its fragments are free then."""
        acc, p_frag = load(self._acc, [index(0)]), load(self._p_frag, [index(0)])
        count, words = self._config.column16 // 2, self._config.block_n // 4
        return wgmma.wait_for(acc, count, a_frag=(p_frag, words), is_twin=is_twin)

    def _stage(self, n: ir.Expr) -> ir.Expr:
        """Return the first row of a stage."""
        return n * self._config.block_n

    def _staged(self, row: ir.Expr, column: ir.Expr) -> ir.TensorLoad:
        config = self._config
        if config.is_staged_in_queries:
            lanes = config.staged_lanes
            vector, lane = tirx.floordiv(column, index(lanes)), tirx.floormod(column, index(lanes))
            panel = tirx.floordiv(vector, index(BANKS)) * config.block_m
            # Rotated, not exchanged: TVM 0.27 narrows no index that goes through a call.
            place = tirx.floormod(vector + row, index(BANKS))
            place += (panel + self._g * config.rows_of_warp + row) * BANKS
            return load(self._shared, [place * VECTOR + lane * (config.staged_bytes // HALF_BYTES)])
        begin = self._config.staging_offset // HALF_BYTES
        place = super()._staged(row, column)
        return load(self._shared, [place.indices[0] + begin])


class Consumers(Roles):
    """A thread of a block; parameters as of :class:`.consumers.Roles`."""

    def consume(self, group: ir.Expr) -> tirx.Stmt:
        """Compute the rows of a consumer."""
        config = self._config
        tiles = self._ping_pong if config.is_ping_pong else self._at_own_pace
        return sequence(
            [
                *self._at.start(),
                *self._keep_limits(),
                self._initialize(),
                touch(self._s, int(self._s.ty.shape[0]) - 1),
                self._queries.wait(0, index(0)),
                tiles(group),
                *self._all_reduce(self._l_i, operator.add),
                *([wgmma.warpgroup_barrier(group)] if config.is_staged_in_queries else []),
                self._stage_results(),
                warp_sync(),
                self._store_results(),
            ]
        )

    def _at_own_pace(self, group: ir.Expr) -> tirx.Stmt:
        keys, values, at = self._keys, self._values, self._at

        def step(n: ir.Expr) -> tirx.Stmt:
            return sequence(
                [
                    keys.wait(),
                    self._multiply_queries(group),
                    self._wait_for_scores(),
                    keys.release(self._t, at.stage),
                    self._softmax(n),
                    values.wait(),
                    self._multiply_values(index(at.stage)),
                    warp_sync(),
                    values.release(self._t, at.stage),
                    *at.advance(1),
                ]
            )

        return loop("n", self._tiles.count, step)

    def _ping_pong(self, group: ir.Expr) -> tirx.Stmt:
        keys, count = self._keys, self._tiles.count
        # The first one's first turn needs no other's.
        waits = tirx.Cast("int64", group.equal(0))
        following = tirx.floormod(group + 1, tirx.const(self._config.consumers, "int32"))

        def wait_order(n: ir.Expr) -> tirx.Stmt:
            return self._order.wait(group, tirx.floormod(n + waits, index(2)))

        passed = self._order.arrive(following, self._t)

        def scores(n: ir.Expr) -> list[tirx.Stmt]:
            return [keys.wait(), wait_order(n), self._multiply_queries(group)]

        def step(m: ir.Expr) -> tirx.Stmt:
            return sequence(self._step(m + 1, scores(m + 1), passed))

        zero = index(0)
        read = [self._wait_for_scores(), keys.release(self._t, self._at.stage)]
        first = [*scores(zero), passed, *read, self._softmax(zero), *self._at.advance(1)]
        last = [wait_order(count), *self._issue_values_before(), passed, self._wait_for_results()]
        steps = loop("m", simplified(count - 1), step)
        return when(count > 0, sequence([*first, steps, *last]))

    def _step(self, n: ir.Expr, scores: list[tirx.Stmt], passed: tirx.Stmt) -> list[tirx.Stmt]:
        """Write what is done for a tile but the first one."""
        at, wait = self._at, self._wait_for_scores(1)
        return [
            *scores,
            *self._issue_values_before(),
            *([passed, wait] if self._config.passes_early else [wait, passed]),
            self._keys.release(self._t, at.stage),
            self._maxima(n),
            self._exponentials(),
            self._wait_and_rescale(),
            self._values.release(self._t, at.before),
            self._pack_weights(n),
            *at.advance(1),
        ]

    def _wait_and_rescale(self) -> tirx.Stmt:
        """Wait for the product with values behind the exponentials.

        All warps of a warpgroup wait at one place, as PTX wants it: the branch is of tiles. A wait
        before any branch is moved by ptxas to where the scores are waited for.
        """
        first = [self._wait_for_results(), self._rescale_results()]
        other = [self._wait_for_results(is_twin=True), self._rescale_results()]
        return tirx.IfThenElse(self._at.stage.equal(0), sequence(first), sequence(other))

    def _issue_values_before(self) -> list[tirx.Stmt]:
        """Issue the product with the values of the tile before that at hand."""
        at = self._at
        parity = tirx.Select(at.stage.equal(0), 1 - at.parity, at.parity)
        full = self._values.full.wait(at.before, parity)
        return [full, self._multiply_values(index(at.before), is_waited_for=False)]


# FlashAttention on Hopper: TMA copies, a producer warp, warpgroups that multiply and normalize.
#
# grid: batch * heads * ceil(queries / block_m) blocks; block: 1 + consumers warpgroups
# shared memory: q[block_m, d]; rings of `stages` tiles k[block_n, d] and v[block_n, d], 128-byte
#                swizzle; barriers full and empty of q, of each stage of k and v
# registers of a consumer's thread: as with mma.sync, of 16 rows of its warp
# limits of visible keys that rows read from memory: their extremes in the block, by all warps
# producer, one thread:
#     copy q
#     for n in range(tiles that a row of the block sees):
#         wait(k_empty[stage]); copy k(n), which completes on k_full[stage]; the same of v(n)
# consumers, of 64 rows each; in this order:
#     wait(q_full)
#     for n:
#         wait(k_full[stage]); s = q * k               wgmma, both from shared memory
#         arrive(k_empty[stage])
#         softmax of s, as with mma.sync: p_frag
#         wait(v_full[stage]); acc += p_frag * v       wgmma, v from shared memory
#         arrive(v_empty[stage])
#     bar.sync of the warpgroup; acc / l_i -> shared memory, where its queries were, or behind v
#     __syncwarp; epilogue -> global, in vectors, of each warp its rows
def flash_tma_kernel(
    program: Program, problem: FlashProblem, config: FlashTmaConfig
) -> tirx.PrimFunc:
    """Make the kernel."""
    operands = tma_operands(problem)
    if operands is None:
        raise RuntimeError("the group is not the one that was claimed")
    maps: list[list[ir.Var]] = []
    encode: list[tirx.Stmt] = []
    sizes = (config.block_m, config.block_n, config.block_n)
    for name, rows, size in zip("qkv", operands, sizes, strict=True):
        encoded = [tensor_map.encode(f"map_{name}") for tensor_map in rows.with_rows(size)]
        maps.append([variable for variable, _ in encoded])
        encode += [stmt for _, stmts in encoded for stmt in stmts]
    copies = list(zip(operands, maps, strict=True))

    def write(where: dict[ir.Var, ir.Expr], first: ir.Expr) -> tirx.Stmt:
        return min_blocks_per_sm(_block(problem, config, copies, where, first), config.min_blocks)

    grid = query_blocks(problem, config, write)
    return kernel(program, grid, encode)


def _block(
    problem: FlashProblem,
    config: FlashTmaConfig,
    copies: list[tuple[TmaRows, list[ir.Var]]],
    where: dict[ir.Var, ir.Expr],
    first: ir.Expr,
) -> tirx.Stmt:
    size = config.shared_bytes // HALF_BYTES
    # CUDA wants one type for all declarations of a name in a module.
    shared = tma.shared_tiles(size, problem.half, f"tiles_{problem.half}")

    def of_thread(thread: ir.Expr) -> tirx.Stmt:
        warp = warp_of(thread) - wgmma.WARPS  # of the consumers
        roles = Consumers(problem, config, where, first, warp, lane_of(thread), shared, copies)
        stmts = warp_specialized(
            thread,
            roles.initialize(),
            lambda _group: roles.produce(thread.equal(0)),
            roles.consume,
            registers=wgmma.MOVED_REGISTERS[config.consumers],
            around=(roles.find_limits(), ()),
        )
        stmts.insert(0, touch(shared, size - 1))
        return block_by_address("flash_attention", sequence(stmts), roles.buffers)

    return block("grid", threads("threadIdx.x", config.threads, of_thread), [shared])
