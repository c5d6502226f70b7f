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
A warp has k16 of its slice of each stage (slice-K).
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import index, local, loop, sequence, unrolled, when
from ..gpu.cp_async import commit
from ..gpu.ldmatrix import ldmatrix_x4
from ..gpu.mma import ACCUMULATORS, GROUPS, K_PER_THREAD, WARP, mma_m16n8k16
from ..gpu.shared_tiles import block_barrier, exchanged, swizzle, touch, wait_and_barrier
from .tile_gemm_config import K16, M16, TileGemmConfig, TilePlace
from .tile_operand import CHUNK, WORDS, OperandTile

FRAGMENT = 2 * K_PER_THREAD  # elements of a thread, of 16 rows and 16 k


class TileMmaMainloop:
    """The accumulators of a block's warps.

    Parameters
    ----------
    cut : TileGemmConfig
        The product.
    place : TilePlace
        The block's tile.
    shared : Var
        Shared memory, float32 words.

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

    def __init__(self, cut: TileGemmConfig, place: TilePlace, shared: ir.Var) -> None:
        self._cut, self._place, self._shared = cut, place, shared
        self._a, self._b = OperandTile(cut, True), OperandTile(cut, False)
        self.slabs, self.n8 = cut.warp_m // M16, cut.warp_n // GROUPS
        self.warps_m, self.warps_n, self.warps_k = cut.warps_m, cut.warps_n, cut.warps_k
        self.threads = cut.threads
        self._steps = cut.block_k // K16 // cut.warps_k
        self._slots = 2 if self._steps % 2 == 0 else 1
        self.acc = local("acc", [cut.accumulators], "float32")
        self._frags = [
            local(f"{name}_frag", [self._slots * size // M16 * FRAGMENT], cut.half)
            for name, size in (("a", cut.warp_m), ("b", cut.warp_n))
        ]
        self.buffers = [self.acc, *self._frags, *self._a.buffers, *self._b.buffers]

    def warp_of(self, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Tell the slice of K, the row and the column of a thread's warp among the warps."""
        warp = tirx.floordiv(thread, index(WARP))
        tile = self.warps_m * self.warps_n
        inside = tirx.floormod(warp, index(tile))
        return (
            tirx.floordiv(warp, index(tile)),
            tirx.floordiv(inside, index(self.warps_n)),
            tirx.floormod(inside, index(self.warps_n)),
        )

    def slab_row(self, slab: ir.Expr | int, warp_m: ir.Expr) -> ir.Expr:
        """Give the first row, in the block's tile, of a slab of the warps in a row."""
        return warp_m * self._cut.warp_m + slab * M16

    def barrier(self) -> tirx.Stmt:
        """Wait for all threads that have accumulators."""
        return block_barrier()

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the software pipeline over the tiles of K."""
        cut = self._cut
        ahead = cut.stages - 1

        def clear(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.acc, tirx.const(0, "float32"), [i])

        stmts = [touch(b, int(b.ty.shape[0]) - 1) for b in (*self._frags, self._shared)]
        for n in range(ahead):
            if n < cut.k_tiles:
                stmts += [self._begin(thread, index(n)), self._finish(thread, index(n))]
            stmts.append(commit())
        stmts.append(unrolled("i", cut.accumulators, clear))
        turn = self._pipelined if self._slots == 2 else self._simple
        if self._slots == 2:
            stmts += [wait_and_barrier(ahead - 1), self._load(thread, index(0), 0, 0)]
        stmts.append(loop("k_tile", cut.k_tiles, lambda tile: turn(thread, tile)))
        return sequence(stmts)

    def _pipelined(self, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Multiply a tile while the fragments of the next k16 are loaded."""
        ahead, last = self._cut.stages - 1, self._steps - 1
        stmts = []
        for k16 in range(self._steps):
            if k16 == last:
                stmts += [self._ahead(self._finish, thread, tile), wait_and_barrier(ahead - 1)]
            following = tile + 1 if k16 == last else tile
            stmts.append(self._load(thread, following, (k16 + 1) % self._steps, (k16 + 1) % 2))
            if k16 == 0:
                stmts += [self._ahead(self._begin, thread, tile), commit()]
            stmts.append(self._multiply(k16 % 2))
        return sequence(stmts)

    def _simple(self, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Multiply a tile, loading each of its fragments before it is used."""
        stmts = [wait_and_barrier(self._cut.stages - 2)]
        stmts += [self._ahead(self._begin, thread, tile), commit()]
        for k16 in range(self._steps):
            stmts += [self._load(thread, tile, k16, 0), self._multiply(0)]
        stmts.append(self._ahead(self._finish, thread, tile))
        return sequence(stmts)

    def _ahead(self, do, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Begin or finish the copy of the tile that a stage is free for, if there is one."""
        ahead = tile + (self._cut.stages - 1)
        return when(ahead < self._cut.k_tiles, do(thread, ahead))

    def _begin(self, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        return self._copy("begin", thread, tile)

    def _finish(self, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        return self._copy("finish", thread, tile)

    def _copy(self, what: str, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Copy the tiles of A and B to their stage."""
        cut, where = self._cut, self._cut.axes_at(self._place.batch)
        k_tile = self._place.rank * cut.k_tiles + tile
        sides = (
            (self._a, self._place.m_tile * cut.block_m),
            (self._b, self._place.n_tile * cut.block_n),
        )
        stmts = []
        for operand, first in sides:
            to = (self._shared, self._stage(operand, tile))
            stmts.append(getattr(operand, what)(thread, where, first, k_tile, to))
        return sequence(stmts)

    def _stage(self, operand: OperandTile, tile: ir.Expr) -> ir.Expr:
        """Give the first word of an operand's tile."""
        stage = tirx.floormod(tile, index(self._cut.stages))
        words = self._a.words + self._b.words
        return stage * words + (0 if operand is self._a else self._a.words)

    def _load(self, thread: ir.Expr, tile: ir.Expr, k16: int, slot: int) -> tirx.Stmt:
        """Load a warp's fragments of A and B."""
        cut = self._cut
        k_slice, warp_m, warp_n = self.warp_of(thread)
        step = k_slice * self._steps + k16
        sides = (
            (self._a, self._frags[0], warp_m * cut.warp_m, cut.warp_m // M16),
            (self._b, self._frags[1], warp_n * cut.warp_n, cut.warp_n // M16),
        )
        stmts = []
        for operand, frags, first, count in sides:
            start = self._stage(operand, tile)

            def one(
                i: ir.Expr, operand=operand, frags=frags, first=first, count=count, start=start
            ) -> tirx.Stmt:
                word = start + self._lane_word(operand, thread, first + i * M16, step)
                to = load(frags, [(slot * count + i) * FRAGMENT])
                row = load(self._shared, [word])
                return ldmatrix_x4(to, row, not operand.is_k_contiguous)

            stmts.append(unrolled("i", count, one))
        return sequence(stmts)

    def _lane_word(
        self, operand: OperandTile, thread: ir.Expr, first: ir.Expr, step: ir.Expr
    ) -> ir.Expr:
        """Give the word of the row that a lane passes to ldmatrix.

        Matrices are in the order of fragments: rows 0 to 7 and their two halves of k, rows 8 to 15.
        """
        lane = tirx.floormod(thread, index(WARP))
        row, high_k = tirx.floormod(lane, 8), tirx.floormod(tirx.floordiv(lane, 8), 2)
        high = tirx.floordiv(lane, 16)
        by = swizzle(row, operand.row_chunks)
        if operand.is_k_contiguous:
            line, chunk = first + high * 8 + row, step * (K16 // CHUNK) + high_k
        else:
            line = step * K16 + high_k * 8 + row
            chunk = tirx.floordiv(first, CHUNK) + high
        return (line * operand.row_chunks + exchanged(chunk, by)) * WORDS

    def _multiply(self, slot: int) -> tirx.Stmt:
        """Multiply all fragments of A with all of B."""
        a_frag, b_frag = self._frags
        columns = self.n8 // 2

        def row(i: ir.Expr) -> tirx.Stmt:
            def one(j: ir.Expr) -> tirx.Stmt:
                acc = load(self.acc, [(i * self.n8 + j) * ACCUMULATORS])
                a = (slot * self.slabs + i) * FRAGMENT
                rows = [load(a_frag, [a + half * K_PER_THREAD]) for half in range(2)]
                column = load(b_frag, [slot * columns * FRAGMENT + j * K_PER_THREAD])
                return mma_m16n8k16(self._cut.half, acc, rows, column)

            return unrolled("j", self.n8, one)

        return unrolled("i", self.slabs, row)
