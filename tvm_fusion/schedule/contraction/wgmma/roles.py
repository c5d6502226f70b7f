"""Roles of a GEMM's warpgroups on Hopper: a producer of tiles, consumers that multiply them.

    producer, while other warps may store parts of a concatenation:
      for tile = block, block + grid, ..:  for k_tile:
        wait(empty[stage]); copy A and B; they arrive at full[stage]             (below)
    consumers, of block_m / consumers rows each, or of every other tile:
      for tile:
        load what the first results read, or behind the last k_tile
        wait(order[consumer]), if they are ping-pong
        for k_tile:
          wait(full[stage]);  acc += A * B                              wgmma, one group in flight
          arrive(empty[stage before])
          (of float8: acc = A * B of the stage; arrive(empty[stage]); sums += acc)
        arrive(order[the other])
        epilogue: results in vectors, from registers                    (direct_epilogue)
                  or of unaligned rows, through shared memory           (staged_epilogue)
      let the next kernel be launched

The producer runs ahead into the next tile while consumers store results. The place in the ring of
stages is kept in registers. With split-K a block has one tile, and the roles end with the sums.
"""

import math
from collections.abc import Callable

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    constant,
    coordinates,
    index,
    local,
    loop,
    sequence,
    unrolled,
    when,
)
from ...gpu.launch import VECTOR_BYTES, dependents_launch
from ...gpu.matrix import wgmma
from ...gpu.matrix.warp_specialized import persistent_tiles
from ...gpu.memory import mbarrier, tma
from ...gpu.memory.shared_tiles import touch
from ...gpu.registers.moves import zero_16
from ...gpu.threads.warp import LANES, lane_of
from ..tile.grid import TilePlace
from ..tile.operand.layout import TilePosition
from .config import WgmmaConfig
from .direct_epilogue import DirectEpilogue
from .operands.computed import ComputedTile
from .staged_epilogue import StagedEpilogue
from .stages import TileStages

IDLE_THREADS = wgmma.THREADS - LANES  # of the producer


class Roles:
    """What the threads of a block do.

    Parameters
    ----------
    maps
        Tensor maps of A, and of B.
    number, thread
        Of the block and the thread.
    shared
        Shared memory, bytes.

    Attributes
    ----------
    acc : Var
        Accumulators of a consumer's thread, ``[slab, column tile, 4]``.
    buffers : list of Var
        Registers.
    """

    def __init__(
        self,
        config: WgmmaConfig,
        maps: list[list[ir.Var]],
        number: ir.Expr,
        thread: ir.Expr,
        shared: ir.Var,
    ) -> None:
        self._config, self._maps, self._number, self._thread = config, maps, number, thread
        self._shared, self._stages = shared, TileStages(config, shared)
        dtype = config.problem.contraction.dtype
        self._own = self.acc = local("acc", [config.accumulators], dtype)  # of a stage, and of all
        self._tile = local("tile", [3], "int32")  # matrix of the batch, tile along M and N
        self._ring = self._stages.ring
        self.buffers = [self.acc, self._tile, self._ring.at.buffer]
        if config.problem.ragged is not None:
            self.buffers.append(config.problem.ragged.registers)
        if config.is_promoted:
            self._own = local("own", [config.accumulators], dtype)
            self.buffers.append(self._own)

    def prepare(self) -> list[tirx.Stmt]:
        """Write what shared memory has before the first copies, in front of a barrier."""
        config, rows = self._config, self._config.problem.ragged
        if rows is not None:
            return [rows.fill(self._thread, config.tile.block_m, config.table(self._shared))]
        return self._clear_rest() if config.tile_rows < config.tile.block_m else []

    def _clear_rest(self) -> list[tirx.Stmt]:
        """Clear the rows of A behind those of a tile, which are multiplied, and not stored."""
        config = self._config
        rows = config.tile.block_m - config.tile_rows
        sizes = [config.tile.stages, rows, tma.ROW_BYTES // VECTOR_BYTES]
        total = math.prod(sizes)

        def clear(step: ir.Expr) -> tirx.Stmt:
            flat = step * config.threads + self._thread
            stage, row, chunk = coordinates(flat, sizes)
            place = (row + config.tile_rows) * tma.ROW_BYTES + chunk * VECTOR_BYTES
            return when(flat < total, zero_16(self._stages.operand(0, stage, place)))

        return [loop("step", -(-total // config.threads), clear), wgmma.fence_proxy()]

    def count_tiles(self) -> tirx.Stmt:
        """Count the tiles of ragged rows, behind the barrier."""
        config, rows = self._config, self._config.problem.ragged
        return sequence([]) if rows is None else rows.count(config.table(self._shared))

    def initialize(self) -> tirx.Stmt:
        """Initialize the barriers; one thread does."""
        return self._stages.initialize(self._maps)

    def produce(self, group: ir.Expr, concat_parts: tirx.Stmt | None = None) -> tirx.Stmt:
        """Fill the stages: one thread of a warpgroup, or all where they compute B.

        Parameters
        ----------
        concat_parts
            What the threads of the other warps do.
        """
        config = self._config
        thread, own, start = self._thread, index(0), self._ring.at.start()
        if config.producers > 1:
            thread, own = tirx.floormod(thread, index(wgmma.THREADS)), tirx.Cast("int64", group)
            start.append(when(own.equal(1), sequence(self._ring.at.advance(1))))
        producer = Producer(config, self._maps, self._stages, thread, own)
        self.buffers += producer.buffers
        tiles = self._tiles(lambda _, place: producer.tile(place))
        made = sequence([*start, tiles])
        made = made if config.computes_b else when(self._thread.equal(0), made)
        if concat_parts is not None:
            made = tirx.IfThenElse(self._thread < LANES, made, concat_parts)
        return made

    def consume(self, group: ir.Expr) -> tirx.Stmt:
        """Multiply, and store the results: the warpgroups behind the first."""
        config, stages, ring, at = self._config, self._stages, self._ring, self._ring.at
        own = tirx.Cast("int64", group)
        warp_lane = lane_of(self._thread)
        first_row = index(0) if config.is_ping_pong else own * (config.slabs * wgmma.M)

        def of_tile(step: ir.Expr, place: TilePlace) -> tirx.Stmt:
            order = stages.ping_pong(self._thread, own, step) if config.is_ping_pong else ([], [])

            def one(k_tile: ir.Expr) -> tirx.Stmt:
                products = self._multiply(at.stage, first_row, k_tile)
                if config.is_promoted:
                    own = [wgmma.wait(0), ring.release(warp_lane, at.stage), self._promote()]
                    return sequence([ring.wait(), products, *own, *at.advance(1)])
                return sequence(
                    [
                        ring.wait(),
                        products,
                        wgmma.wait(1),
                        when(k_tile > 0, ring.release(warp_lane, at.before)),
                        *at.advance(1),
                    ]
                )

            products = loop("k_tile", config.steps(config.grid.k_tiles), one)
            if config.is_promoted:
                products = sequence([self._clear(), products])
            if config.tile.split_k > 1:  # all blocks of the cluster store results together
                whole = touch(self.acc, config.accumulators - 1)
                return sequence([whole, products, wgmma.wait(0)])
            last = [] if config.is_promoted else [ring.release(warp_lane, at.before)]
            skip = at.advance(config.grid.k_tiles) if config.is_ping_pong else []
            epilogue = self._epilogue(place, first_row, own)
            lane = tirx.floormod(self._thread, index(wgmma.THREADS))
            loads = [epilogue.prologue(lane)]
            early, late = (loads, []) if epilogue.loads_early else ([], loads)
            rows = epilogue.row_values(lane) if isinstance(epilogue, DirectEpilogue) else []
            stmts = [
                *rows,
                *early,
                *order[0],
                products,
                *order[1],
                *late,
                wgmma.wait(0),
                *last,
                *skip,
                epilogue.stmt(lane),
            ]
            return block("tile", sequence(stmts), epilogue.buffers)

        mine = (own, 2) if config.is_ping_pong else (0, 1)
        start = at.start()
        if config.is_ping_pong:  # the first tile is the other's
            start.append(when(own.equal(1), sequence(at.advance(config.grid.k_tiles))))
        # Producers have ended before; with split-K, all threads store results.
        last = [] if config.tile.split_k > 1 else [dependents_launch()]
        return sequence([*start, self._tiles(of_tile, mine), *last])

    def _epilogue(
        self, place: TilePlace, first_row: ir.Expr, consumer: ir.Expr
    ) -> DirectEpilogue | StagedEpilogue:
        common = self._config, place, self.acc, first_row
        if self._config.is_staged:
            return StagedEpilogue(*common, consumer, self._shared)
        return DirectEpilogue(*common)

    def _multiply(self, stage: ir.Expr, first_row: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Issue the products of a stage, as one group."""
        config, stages = self._config, self._stages
        a, b = (operand.layout for operand in config.operands)
        of_b = tirx.Var("descriptor_b", "uint64")
        stmts = [tirx.Bind(of_b, b.descriptor(stages.operand(1, stage)))]
        of_a = []
        for slab in range(config.slabs):
            row = config.operands[0].slab(first_row + slab * wgmma.M)
            of_a.append(tirx.Var("descriptor_a", "uint64"))
            stmts.append(tirx.Bind(of_a[-1], a.descriptor(stages.operand(0, stage, row))))
        stmts.append(wgmma.fence())
        for k16 in range(config.tile.block_k // config.problem.k_step):
            for slab in range(config.slabs):
                sums = load(self._own, [index(slab * config.tile.block_n // 2)])
                left = a, of_a[slab] + tirx.const(a.step(k16), "uint64")
                right = b, of_b + tirx.const(b.step(k16), "uint64")
                is_first = tirx.const(False) if config.is_promoted else k_tile > 0
                is_added = is_first if k16 == 0 else tirx.const(True)
                types = config.problem.a_dtype, config.problem.b_dtype
                stmts.append(
                    wgmma.multiply(types, config.tile.block_n, sums, left, right, is_added)
                )
        return sequence([*stmts, wgmma.commit()])

    def _clear(self) -> tirx.Stmt:
        zero = tirx.const(0, self._config.problem.contraction.dtype)
        count = self._config.accumulators
        stores = unrolled("i", count, lambda i: tirx.BufferStore(self.acc, zero, [i]))
        return sequence([touch(self._own, count - 1), stores])

    def _promote(self) -> tirx.Stmt:
        """Add the sums of a stage to those of all."""

        def add(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.acc, load(self.acc, [i]) + load(self._own, [i]), [i])

        return unrolled("i", self._config.accumulators, add)

    def _tiles(
        self,
        body: Callable[[ir.Expr, TilePlace], tirx.Stmt],
        share: tuple[ir.Expr | int, int] = (0, 1),
    ) -> tirx.Stmt:
        """Loop over a block's tiles, or every second of them from the first or second on."""
        config = self._config
        if config.tile.split_k > 1:
            return body(index(0), config.grid.tile_of(self._number))
        rows = config.problem.ragged
        tiles = config.grid.tiles if rows is None else rows.tiles * config.grid.tiles_n
        # Fewer blocks than are resident have one tile each: a symbolic number need not divide.
        is_static = constant(config.grid.tiles) is not None
        blocks = config.blocks if is_static else index(config.resident)
        held = [tirx.Cast("int64", load(self._tile, [index(i)])) for i in range(3)]

        def one(step: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            if rows is not None:
                place, find = config.grid.found(number, config.table(self._shared))
                return sequence([*find, body(step, place)])
            place = config.grid.tile_of(number)
            extents = [a.extent for a in config.problem.batch]
            matrix: ir.Expr = index(0)
            for position, extent in zip(place.batch, extents, strict=True):
                matrix = matrix * index(extent) + position
            values = matrix, place.m_tile, place.n_tile
            stores = [
                tirx.BufferStore(self._tile, tirx.Cast("int32", v), [i])
                for i, v in enumerate(values)
            ]
            batch = tuple(coordinates(held[0], extents))
            return sequence([*stores, body(step, TilePlace(batch, held[1], held[2], index(0)))])

        return persistent_tiles(tiles, blocks, self._number, one, share)


# The producer of a Hopper GEMM: fills the stages of shared memory with tiles of A and B.
#
# one thread, for tile, for k_tile: wait(empty[stage]); expect_bytes(full[stage]); copy A and B TMA,
# 128-byte swizzle where B is computed, all threads of the warpgroup, for tile: load what their
# chunks of their first k_tile are computed of global to registers for k_tile, or for every other
# where two warpgroups take turns: wait(empty[stage]); one thread: the same of A alone compute the
# chunks and store them (computed_operand) load for their next k_tile fence of the asynchronous
# proxy; one thread of a warp: arrive(full[stage])
class Producer:
    """What the threads of the first warpgroup do.

    Parameters
    ----------
    maps
        Tensor maps of A, and of B.
    thread
        The thread of the warpgroup.
    number
        Of the warpgroup, among those that take turns.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    """

    def __init__(
        self,
        config: WgmmaConfig,
        maps: list[list[ir.Var]],
        stages: TileStages,
        thread: ir.Expr,
        number: ir.Expr,
    ) -> None:
        self._config, self._maps, self._stages = config, maps, stages
        self._ring, self._thread, self._own = stages.ring, thread, number
        self._computed = ComputedTile(config) if config.computes_b else None
        self.buffers = [] if self._computed is None else self._computed.buffers

    def tile(self, place: TilePlace) -> tirx.Stmt:
        """Fill stages with all k of a tile of C."""
        computed, count = self._computed, self._config.grid.k_tiles
        if computed is None:
            return loop("k_tile", self._config.steps(count), lambda k: self._fill(place, k))

        def begin(k_tile: ir.Expr) -> tirx.Stmt:
            return computed.begin(self._thread, self._position(place, k_tile), self._b(index(0)))

        every = self._config.producers

        def one(turn: ir.Expr) -> tirx.Stmt:
            k_tile = turn * every + self._own
            return self._fill(place, k_tile, when(k_tile + every < count, begin(k_tile + every)))

        return sequence([begin(self._own), loop("k_tile", count // every, one)])

    def _fill(self, place: TilePlace, k_tile: ir.Expr, ahead: tirx.Stmt | None = None) -> tirx.Stmt:
        stages, stage = self._stages, self._ring.at.stage
        copies = self._copies(place, k_tile)
        if self._computed is not None and ahead is not None:
            b = self._position(place, k_tile), self._b(stage)
            made = self._computed.finish(self._thread, *b)
            first = when(self._thread.equal(0), sequence(copies))
            copies = [first, made, ahead, stages.fill(self._thread, stage)]
        advance = self._ring.at.advance(self._config.producers)
        return sequence([self._ring.acquire(), *copies, *advance])

    def _copies(self, place: TilePlace, k_tile: ir.Expr) -> list[tirx.Stmt]:
        """Copy what TMA copies of a stage."""
        config, stages, stage = self._config, self._stages, self._ring.at.stage
        full, batch = self._ring.full[stage], config.problem.axes_at(place.batch)
        first = config.grid.first_row(place.m_tile)
        if config.problem.ragged is not None:
            first = config.problem.ragged.copied_first
        firsts = [first], config.first_columns(place.n_tile)
        k = self._number(place, k_tile) * config.tile.block_k
        stmts = [mbarrier.expect_bytes(full, config.copied_bytes)]
        for i, operand in enumerate(config.operands):
            for at, own, where in operand.boxes(batch, firsts[i], k):
                to = stages.operand(i, stage, at)
                stmts.append(tma.load(to, self._maps[i][own], full, where))
        return stmts

    def _number(self, place: TilePlace, k_tile: ir.Expr) -> ir.Expr:
        """Return the number of a tile of K among those of all ranks."""
        split = self._config.tile.split_k > 1
        return place.rank * self._config.grid.k_tiles + k_tile if split else k_tile

    def _position(self, place: TilePlace, k_tile: ir.Expr) -> TilePosition:
        first = place.n_tile * self._config.tile.block_n
        where = self._config.problem.axes_at(place.batch)
        return TilePosition(where, first, self._number(place, k_tile))

    def _b(self, stage: ir.Expr) -> tuple[ir.Var, ir.Expr]:
        """Return the byte of shared memory where B of a stage begins."""
        first = self._stages.operand(1, stage)
        return first.source, index(first.indices[0])
