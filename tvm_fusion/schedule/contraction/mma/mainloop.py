"""Main loop of a tiled GEMM with mma.sync: a cp.async pipeline, swizzled tiles, ldmatrix.

    for s in 0 .. stages - 2:   copy A, B of tile s to stage s; commit            cp.async
    wait for tile 0, barrier;   frag[0] = tile 0, k16 0                           ldmatrix
    for tile in k_tiles:
      for k16 in block_k / 16 / warps_k:
        before the last:   wait for tile + 1, barrier
        frag[(k16 + 1) % 2] = the next k16, of the next tile behind the last      ldmatrix
        at the first:      copy tile + stages - 1 into the stage of tile - 1; commit
        acc += frag[k16 % 2].a * frag[k16 % 2].b                                  mma.m16n8k16

One barrier of the block per tile: it says that tile + 1 is there and that tile - 1 was consumed.
Without cp.async (compute capability 7.5), copies are loads into registers, which are stored to the
stage behind the products of a tile, before its barrier. So are AMD's, which wait for no next k16:
    for tile in k_tiles, written out for each stage, whose place is a constant then:
      barrier;  load tile + 1;  [schedule]  multiply tile, all its k16;  [schedule]  store tile + 1
A warp has k16 of its slice of each stage (slice-K). A k16 is 32 bytes: 16 terms of half types, 32
of bytes, 8 of float32.

Of float32 that keeps its precision (3xTF32), operands are split into tfloat32, x = hi + lo:
  for k16:           part += a.hi * b.hi;  small += a.lo * b.hi + a.hi * b.lo
  behind each tile:  acc += part;  part = 0    tensor cores cut sums off, CUDA cores round them
  at the end:        acc += small, where acc is finite
"""

from collections.abc import Callable

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, local, loop, sequence, unrolled, when
from ...gpu.memory.pipeline import OffsetRing, WrittenOutRing
from ...gpu.memory.shared_tiles import touch
from ...gpu.threads.warp import warp_of
from ..tile.config import TileGemmConfig
from ..tile.grid import TilePlace
from ..tile.operand.chunks import OperandChunks
from ..tile.operand.layout import TilePosition
from ..tile.operand.tile import OperandTile
from ..tile.operand.turned import TurnedOperandTile
from ..tile.shape import M16
from .fragments import fragments_of


# Accumulators of mma.sync in a block's warps: what the epilogue of a tiled GEMM stores.
class TileAccumulators:
    """The accumulators of a thread, and where its warp is in the block's tile.

    Attributes
    ----------
    acc : Var
        Accumulators of a thread, ``[slabs, n8, 4]``; a slab has 16 rows.
    slabs, n8 : int
        Their extents.
    warps_m, warps_n, warps_k : int
        Warps along M, along N, and those that have partial sums of the same elements.
    threads : int
        Threads that have accumulators.
    buffers : list of Var
        Registers.
    """

    def __init__(self, config: TileGemmConfig) -> None:
        self._config, tile = config, config.tile
        self.slabs, self.n8 = tile.warp_m // M16, tile.warp_n // config.problem.mma.n
        self.warps_m, self.warps_n, self.warps_k = tile.warps_m, tile.warps_n, tile.warps_k
        self.threads = config.threads
        self.acc = local("acc", [config.accumulators], config.problem.contraction.dtype)
        self.buffers: list[ir.Var] = [self.acc]

    def has_sums(self, _thread: ir.Expr) -> ir.Expr:
        """Whether a thread has accumulators: all have."""
        return tirx.const(True)

    def warp_of(self, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Tell the slice of K, the row and the column of a thread's warp among the warps."""
        warp = warp_of(thread, self._config.problem.mma.lanes)
        tile = self.warps_m * self.warps_n
        inside = tirx.floormod(warp, index(tile))
        return (
            tirx.floordiv(warp, index(tile)),
            tirx.floordiv(inside, index(self.warps_n)),
            tirx.floormod(inside, index(self.warps_n)),
        )

    def slab_row(self, slab: ir.Expr | int, warp_m: ir.Expr) -> ir.Expr:
        """Return the first row, in the block's tile, of a slab of the warps in a row."""
        return warp_m * self._config.tile.warp_m + slab * M16

    def barrier(self) -> tirx.Stmt:
        """Wait for all threads that have accumulators."""
        return self._config.problem.moves.barrier()


class TileMmaMainloop(TileAccumulators):
    """The accumulators of a block's warps, added up over K.

    Parameters
    ----------
    shared
        Shared memory, float32 words.
    """

    def __init__(self, config: TileGemmConfig, place: TilePlace, shared: ir.Var) -> None:
        super().__init__(config)
        self._place, self._shared = place, shared
        self._count = config.steps(config.grid.k_tiles)
        self._a, self._b = _operand(config, True), _operand(config, False)
        self._steps = config.tile.block_k // config.problem.k_step // config.tile.warps_k
        self._slots = 2 if self._steps % 2 == 0 or config.problem.is_amd else 1
        self._frags = fragments_of(config, (self._a, self._b), self._slots)
        frags = self._frags.buffers
        self._by_address = [*frags, shared, *self._a.by_address, *self._b.by_address]
        self._stage_words = self._a.words + self._b.words
        self._ring = _ring(config, self._stage_words)
        self.buffers += [*self._ring.buffers, *frags, *self._a.buffers, *self._b.buffers]
        self._parts: list[ir.Var] = []
        if config.problem.products > 1:
            names = ("part", "small")
            self._parts = [
                local(n, [config.accumulators], config.problem.contraction.dtype) for n in names
            ]
            self.buffers += self._parts

    def stmt(self, thread: ir.Expr, concat_parts: tirx.Stmt | None = None) -> tirx.Stmt:
        """Write the software pipeline over the tiles of K.

        Parameters
        ----------
        concat_parts
            What it does while the first tiles are on their way.
        """
        config, ring = self._config, self._ring

        def clear(i: ir.Expr) -> tirx.Stmt:
            zero = tirx.const(0, config.problem.contraction.dtype)
            return sequence([tirx.BufferStore(b, zero, [i]) for b in (self.acc, *self._parts)])

        stmts = [touch(b, int(b.ty.shape[0]) - 1) for b in self._by_address]
        where = config.problem.axes_at(self._place.batch)
        stmts.append(self._a.prepare(thread, where, config.grid.first_row(self._place.m_tile)))
        stmts.append(self._b.prepare(thread, where, self._place.n_tile * config.tile.block_n))

        def fill(n: ir.Expr) -> tirx.Stmt:
            copies = [
                self._copy(do, thread, n, n * self._stage_words) for do in ("begin", "finish")
            ]
            return sequence([when(n < self._count, sequence(copies)), ring.commit()])

        # Copies of an operand that is computed are too much code to be written out.
        is_short = self._a.is_copied and self._b.is_copied
        kind = tirx.ForKind.UNROLLED if is_short else tirx.ForKind.SERIAL
        stmts.append(loop("stage", config.tile.stages - 1, fill, kind))
        stmts += [] if concat_parts is None else [concat_parts]
        stmts += [*ring.start(), unrolled("i", config.accumulators, clear)]
        is_pipelined = self._slots == 2 and not config.problem.is_amd
        tile_step = self._pipelined if is_pipelined else self._simple
        if is_pipelined:
            stmts += [ring.wait(), self._load(thread, 0, 0)]
        promote = [self._promote()] if self._parts else []
        stmts += self._trips(lambda tile: sequence([tile_step(thread, tile), *promote]))
        return sequence([*stmts, self._add_small()] if self._parts else stmts)

    def _trips(self, step: Callable[[ir.Expr], tirx.Stmt]) -> list[tirx.Stmt]:
        """Write the loop over the tiles of K: trips of as many as the ring has written out."""
        each, steps = self._ring.steps, self._config.steps
        trips, rest = divmod(self._config.grid.k_tiles, each)

        def trip(number: ir.Expr) -> tirx.Stmt:
            return sequence([step(number * each + n) for n in range(each)])

        stmts = [loop("k_tile", steps(trips), trip)]
        for n in range(rest):
            stmts.append(when(self._count > trips * each + n, step(index(trips * each + n))))
        return stmts

    def _promote(self) -> tirx.Stmt:
        """Add the sums of a tile to those of all."""
        part, _ = self._parts

        def add(i: ir.Expr) -> tirx.Stmt:
            total = load(self.acc, [i]) + load(part, [i])
            zero = tirx.const(0, self._config.problem.contraction.dtype)
            return sequence(
                [tirx.BufferStore(self.acc, total, [i]), tirx.BufferStore(part, zero, [i])]
            )

        return unrolled("i", self._config.accumulators, add)

    def _add_small(self) -> tirx.Stmt:
        """Add the products with lower halves, which are NaN for an infinite operand."""
        _, small = self._parts

        def add(i: ir.Expr) -> tirx.Stmt:
            total = load(self.acc, [i])
            is_finite = tirx.abs(total) <= tirx.max_value("float32")
            return tirx.BufferStore(
                self.acc, tirx.Select(is_finite, total + load(small, [i]), total), [i]
            )

        return unrolled("i", self._config.accumulators, add)

    def _pipelined(self, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Multiply a tile while the fragments of the next k16 are loaded."""
        ring, last = self._ring, self._steps - 1
        stmts = []
        for k16 in range(self._steps):
            if k16 == last:
                stmts += [self._prefetch("finish", thread, tile), ring.advance_write()]
                stmts += [ring.wait(), ring.advance_read()]
            stmts.append(self._load(thread, (k16 + 1) % self._steps, (k16 + 1) % 2))
            if k16 == 0:
                stmts += [self._prefetch("begin", thread, tile), ring.commit()]
            stmts.append(self._multiply(k16 % 2))
        return sequence(stmts)

    def _simple(self, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Multiply a tile, loading each of its fragments before it is used.

        LLVM would load those of all steps first, into more registers than there are: on AMD GPUs
        no step's are loaded before the one before the last is multiplied.
        """
        ring = self._ring
        fence = self._config.problem.moves.scheduling_barrier
        fences = [] if fence is None else [fence()]
        stmts = [ring.wait(), self._prefetch("begin", thread, tile), ring.commit(), *fences]
        ahead = self._slots - 1
        stmts += [self._load(thread, k16, k16) for k16 in range(min(ahead, self._steps))]
        for k16 in range(self._steps):
            if k16 + ahead < self._steps:
                stmts.append(self._load(thread, k16 + ahead, (k16 + ahead) % self._slots))
            stmts += [self._multiply(k16 % self._slots), *(fences if k16 < self._steps - 1 else [])]
        stmts += [*fences, self._prefetch("finish", thread, tile)]
        return sequence([*stmts, ring.advance_write(), ring.advance_read()])

    def _prefetch(self, do: str, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Begin or finish the copy of the tile that a stage is free for, if there is one."""
        prefetched = tile + (self._config.tile.stages - 1)
        return when(prefetched < self._count, self._copy(do, thread, prefetched, self._ring.write))

    def _copy(self, do: str, thread: ir.Expr, tile: ir.Expr, word: ir.Expr) -> tirx.Stmt:
        """Copy the tiles of A and B to a stage."""
        config, place = self._config, self._place
        where = config.problem.axes_at(place.batch)
        k_tile = place.rank * config.grid.k_tiles + tile
        a = TilePosition(where, config.grid.first_row(place.m_tile), k_tile)
        b = TilePosition(where, place.n_tile * config.tile.block_n, k_tile)
        return sequence(
            [
                getattr(self._a, do)(thread, a, (self._shared, word)),
                getattr(self._b, do)(thread, b, (self._shared, word + self._a.words)),
            ]
        )

    def _load(self, thread: ir.Expr, k16: int, slot: int) -> tirx.Stmt:
        """Load a warp's fragments of A and B, of the stage that is read."""
        k_slice, warp_m, warp_n = self.warp_of(thread)
        step, stage = k_slice * self._steps + k16, self._ring.read
        a_tile, b_tile = (self._shared, stage), (self._shared, stage + self._a.words)
        return sequence(
            [
                self._frags.a.load_k16(thread, warp_m, step, slot, a_tile),
                self._frags.b.load_k16(thread, warp_n, step, slot, b_tile),
            ]
        )

    def _multiply(self, slot: int) -> tirx.Stmt:
        """Multiply all fragments of A with all of B."""

        def of_instruction(number: int) -> tirx.Stmt:
            def row(i: ir.Expr) -> tirx.Stmt:
                def one(j: ir.Expr) -> tirx.Stmt:
                    first = (i * self.n8 + j) * self._config.problem.mma.c.per_lane
                    sums = [load(x, [first]) for x in (self._parts or [self.acc])]
                    return self._frags.multiply(sums, slot, i, j, number)

                return unrolled("j", self.n8, one)

            return unrolled("i", self.slabs, row)

        return sequence([of_instruction(n) for n in range(self._frags.instructions)])


def _operand(config: TileGemmConfig, is_a: bool) -> OperandTile | TurnedOperandTile:
    """Choose the copies of an operand; AMD's tiles have rows of K whatever it lies along."""
    is_along_k = OperandChunks(config.problem, is_a).layout.is_k
    kind = OperandTile if is_along_k or not config.problem.is_amd else TurnedOperandTile
    return kind(config, is_a)


def _ring(config: TileGemmConfig, size: int) -> OffsetRing | WrittenOutRing:
    """Make the ring of stages; AMD's has as many steps in a trip as stages."""
    problem, stages = config.problem, config.tile.stages
    if problem.is_amd:
        return WrittenOutRing(stages, size, problem.moves.barrier)
    return OffsetRing(stages, size, None if problem.is_async else problem.moves.barrier)
