"""GEMM on Hopper: TMA copies, wgmma, warp-specialized roles, a persistent grid.

    block in grid of at most as many as run at once:
      barriers full[stage], empty[stage]                                shared
      warpgroup 0, one thread, the producer:
        for tile = block, block + grid, ..:  for k_tile:
          wait(empty[stage]); expect_bytes(full[stage]); copy A and B   TMA, 128-byte swizzle
      the other warpgroups, consumers of block_m / consumers rows each, or of every other tile:
        for tile:
          wait(turn[consumer]), if they take turns
          for k_tile:
            wait(full[stage]);  acc += A * B                            wgmma, one group in flight
            arrive(empty[stage before])
          arrive(turn[the other])
          epilogue: results of pairs of columns, from registers         (direct_epilogue)

The producer runs ahead into the next tile while consumers store results.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...core.expressions import load
from ...core.loops import block, coordinates, index, kernel, local, loop, sequence, threads, when
from ...program.program import Program
from ..gpu import mbarrier, tma, wgmma
from ..gpu.launch import min_blocks_per_sm
from ..gpu.mma import WARP
from ..gpu.shared_tiles import block_barrier
from .direct_epilogue import DirectEpilogue
from .tile_gemm_config import TilePlace
from .wgmma_config import CONSUMER_REGISTERS, PRODUCER_REGISTERS, WgmmaConfig

_UNIFORM = """
__device__ __forceinline__ int {name}(int value) {{
  return __shfl_sync(0xffffffffu, value, 0);
}}
"""


def wgmma_gemm_gpu(program: Program, cut: WgmmaConfig) -> tirx.PrimFunc:
    """Make the kernel."""
    maps, encode = [], []
    for name, operand in zip(("map_a", "map_b"), cut.operands, strict=True):
        variable, stmts = operand.map.encode(name)
        maps.append(variable)
        encode += stmts
    made = threads(
        "blockIdx.x",
        cut.blocks,
        lambda number: min_blocks_per_sm(_block(cut, maps, number), cut.blocks_per_sm),
    )
    return kernel(program, made, encode)


def _block(cut: WgmmaConfig, maps: list[ir.Var], number: ir.Expr) -> tirx.Stmt:
    shared = tirx.decl_buffer(
        [index(cut.shared_bytes)],
        "uint8",
        "stages",
        scope="shared.dyn",
        data_alignment=tma.TILE_ALIGNMENT,
        layout=None,
    )

    def of_thread(thread: ir.Expr) -> tirx.Stmt:
        roles = _Roles(cut, maps, number, thread, shared)
        group = tirx.Var("warpgroup", "int32")
        name = "tvm_fusion_warp_uniform"
        mine = tirx.Cast("int32", tirx.floordiv(thread, index(wgmma.THREADS)))
        uniform = cuda_func_call(
            name, mine, source_code=_UNIFORM.format(name=name), return_type="int32"
        )
        stmts = [
            when(thread.equal(0), roles.initialize()),
            block_barrier(),
            tirx.Bind(group, uniform),
            tirx.IfThenElse(group.equal(0), roles.produce(), roles.consume(group - 1)),
        ]
        return block("wgmma_gemm", sequence(stmts), roles.buffers)

    return block("grid", threads("threadIdx.x", cut.threads, of_thread), [shared])


class _Roles:
    """What the threads of a block do."""

    def __init__(
        self,
        cut: WgmmaConfig,
        maps: list[ir.Var],
        number: ir.Expr,
        thread: ir.Expr,
        shared: ir.Var,
    ) -> None:
        self._cut, self._maps, self._number, self._thread = cut, maps, number, thread
        self._shared = shared
        self._acc = local("acc", [cut.accumulators], "float32")
        self._tile = local("tile", [3], "int32")  # matrix of the batch, tile along M and N
        self.buffers = [self._acc, self._tile]

    def initialize(self) -> tirx.Stmt:
        """Initialize the barriers; one thread does."""
        arrivals = self._cut.sharers * wgmma.WARPS
        stmts = [tma.prefetch(m) for m in self._maps]
        for stage in range(self._cut.stages):
            stmts.append(mbarrier.init(self._full(index(stage)), 1))
            stmts.append(mbarrier.init(self._empty(index(stage)), arrivals))
        if self._cut.is_ping_pong:
            stmts += [mbarrier.init(self._turn(index(i)), wgmma.WARPS) for i in range(2)]
        return sequence([*stmts, mbarrier.fence_init()])

    def produce(self) -> tirx.Stmt:
        """Copy the tiles of A and B: one thread of a warpgroup."""
        cut = self._cut

        def of_tile(step: ir.Expr, place: TilePlace) -> tirx.Stmt:
            batch = cut.axes_at(place.batch)
            firsts = place.m_tile * cut.block_m, place.n_tile * cut.block_n

            def copy(k_tile: ir.Expr) -> tirx.Stmt:
                turn = step * cut.k_tiles + k_tile
                stage, full = self._stage(turn), self._full(self._stage(turn))
                stmts = [
                    mbarrier.wait(self._empty(stage), self._parity(turn + cut.stages)),
                    mbarrier.expect_bytes(full, cut.stage_bytes),
                ]
                for i, operand in enumerate(cut.operands):
                    for at, where in operand.boxes(batch, firsts[i], k_tile * cut.block_k):
                        to = self._at(self._operand(i, stage) + at)
                        stmts.append(tma.load(to, self._maps[i], full, where))
                return sequence(stmts)

            return loop("k_tile", cut.k_tiles, copy)

        give = [wgmma.give_registers(PRODUCER_REGISTERS)] if cut.consumers == 2 else []
        return sequence([*give, when(self._thread.equal(0), self._tiles(of_tile, index(0), 1))])

    def consume(self, group: ir.Expr) -> tirx.Stmt:
        """Multiply, and store the results: the warpgroups behind the first."""
        cut = self._cut
        own = tirx.Cast("int64", group)
        first_row = index(0) if cut.is_ping_pong else own * (cut.slabs * wgmma.M)

        def of_tile(step: ir.Expr, place: TilePlace) -> tirx.Stmt:
            start = step * cut.k_tiles
            before, after = self._take_turns(own, step)

            def one(k_tile: ir.Expr) -> tirx.Stmt:
                turn = start + k_tile
                consumed = self._release(self._stage(turn + cut.stages - 1))
                return sequence(
                    [
                        mbarrier.wait(self._full(self._stage(turn)), self._parity(turn)),
                        self._multiply(self._stage(turn), first_row, k_tile),
                        wgmma.wait(1),
                        when(k_tile > 0, consumed),
                    ]
                )

            last = self._release(self._stage(start + cut.k_tiles - 1))
            epilogue = DirectEpilogue(cut, place, self._acc, first_row)
            lane = tirx.floormod(self._thread, index(wgmma.THREADS))
            return sequence(
                [
                    *before,
                    loop("k_tile", cut.k_tiles, one),
                    *after,
                    wgmma.wait(0),
                    last,
                    epilogue.stmt(lane),
                ]
            )

        take = [wgmma.take_registers(CONSUMER_REGISTERS)] if cut.consumers == 2 else []
        mine = (own, 2) if cut.is_ping_pong else (index(0), 1)
        return sequence([*take, self._tiles(of_tile, *mine)])

    def _take_turns(self, own: ir.Expr, step: ir.Expr) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
        """Wait before a tile until the other consumer has multiplied the one before."""
        if not self._cut.is_ping_pong:
            return [], []
        parity = tirx.floormod(tirx.floordiv(step, index(2)) + 1 - own, index(2))
        wait = mbarrier.wait(self._turn(own), parity)
        lane = tirx.floormod(self._thread, index(WARP))
        return [wait], [when(lane.equal(0), mbarrier.arrive(self._turn(1 - own)))]

    def _multiply(self, stage: ir.Expr, first_row: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Issue the products of a stage, as one group."""
        cut = self._cut
        a, b = (operand.layout for operand in cut.operands)
        of_b = tirx.Var("descriptor_b", "uint64")
        stmts = [tirx.Bind(of_b, b.descriptor(self._at(self._operand(1, stage))))]
        of_a = []
        for slab in range(cut.slabs):
            row = cut.operands[0].slab(first_row + slab * wgmma.M)
            of_a.append(tirx.Var("descriptor_a", "uint64"))
            stmts.append(tirx.Bind(of_a[-1], a.descriptor(self._at(self._operand(0, stage) + row))))
        stmts.append(wgmma.fence())
        for k16 in range(cut.block_k // 16):
            for slab in range(cut.slabs):
                sums = load(self._acc, [index(slab * cut.block_n // 2)])
                left = a, of_a[slab] + tirx.const(a.step(k16), "uint64")
                right = b, of_b + tirx.const(b.step(k16), "uint64")
                is_added = k_tile > 0 if k16 == 0 else tirx.const(True)
                stmts.append(wgmma.multiply(cut.half, cut.block_n, sums, left, right, is_added))
        return sequence([*stmts, wgmma.commit()])

    def _release(self, stage: ir.Expr) -> tirx.Stmt:
        """Let the producer overwrite a stage: each warp has read it."""
        lane = tirx.floormod(self._thread, index(WARP))
        return when(lane.equal(0), mbarrier.arrive(self._empty(stage)))

    def _tiles(
        self,
        body: Callable[[ir.Expr, TilePlace], tirx.Stmt],
        first: ir.Expr,
        every: int,
    ) -> tirx.Stmt:
        """Loop over a block's tiles, or every second of them from the first or second on."""
        cut, grid = self._cut, self._cut.blocks
        trips = tirx.floordiv(cut.tiles - self._number + (grid - 1), grid)
        trips = tirx.floordiv(trips - first + (every - 1), index(every))
        held = [tirx.Cast("int64", load(self._tile, [index(i)])) for i in range(3)]

        def one(turn: ir.Expr) -> tirx.Stmt:
            step = turn * every + first
            place = cut.tile_of(self._number + step * grid)
            extents = [a.extent for a in cut.batch]
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

        return loop("turn", trips, one)

    def _stage(self, turn: ir.Expr) -> ir.Expr:
        return tirx.floormod(turn, index(self._cut.stages))

    def _parity(self, turn: ir.Expr) -> ir.Expr:
        """Give the parity of the phase in which a stage is used."""
        return tirx.floormod(tirx.floordiv(turn, index(self._cut.stages)), index(2))

    def _operand(self, i: int, stage: ir.Expr) -> ir.Expr:
        """Give the place of an operand's stage: those of A come first."""
        a, b = self._cut.operands
        return stage * a.bytes if i == 0 else stage * b.bytes + self._cut.stages * a.bytes

    def _full(self, stage: ir.Expr) -> ir.TensorLoad:
        return self._at(stage * mbarrier.BYTES + self._cut.barrier_offset)

    def _empty(self, stage: ir.Expr) -> ir.TensorLoad:
        behind = self._cut.barrier_offset + self._cut.stages * mbarrier.BYTES
        return self._at(stage * mbarrier.BYTES + behind)

    def _turn(self, consumer: ir.Expr) -> ir.TensorLoad:
        behind = self._cut.barrier_offset + 2 * self._cut.stages * mbarrier.BYTES
        return self._at(consumer * mbarrier.BYTES + behind)

    def _at(self, place: ir.Expr) -> ir.TensorLoad:
        return load(self._shared, [place])
