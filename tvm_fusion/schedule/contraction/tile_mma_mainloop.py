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
from ..gpu.mma import ACCUMULATORS, GROUPS, K_PER_THREAD, WARP, mma_fragments
from ..gpu.shared_tiles import block_barrier, touch, wait_and_barrier
from ..gpu.swizzle import exchanged, swizzle
from .tile_gemm_config import TileGemmConfig, TilePlace
from .tile_operand import CHUNK, WORDS, OperandTile
from .tile_shape import K16, M16

FRAGMENT = 2 * K_PER_THREAD  # elements of a thread, of 16 rows and 16 k
READ, WRITE = 0, 1  # the stage that is multiplied, and the one that is copied to


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
        self._stage_words = self._a.words + self._b.words
        self._words = local("stage_word", [2], "int32")
        self.buffers = [self.acc, self._words, *self._frags, *self._a.buffers, *self._b.buffers]

    def has_sums(self, _thread: ir.Expr) -> ir.Expr:
        """Whether a thread has accumulators: all have."""
        return tirx.const(True)

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

        def fill(n: ir.Expr) -> tirx.Stmt:
            copies = [
                self._copy(do, thread, n, n * self._stage_words) for do in ("begin", "finish")
            ]
            return sequence([when(n < cut.k_tiles, sequence(copies)), commit()])

        # Copies of an operand that is computed are too much code to be written out.
        is_short = self._a.is_copied and self._b.is_copied
        kind = tirx.ForKind.UNROLLED if is_short else tirx.ForKind.SERIAL
        stmts.append(loop("stage", ahead, fill, kind))
        for pointer, stage in ((READ, 0), (WRITE, ahead)):
            word = tirx.const(stage * self._stage_words, "int32")
            stmts.append(tirx.BufferStore(self._words, word, [pointer]))
        stmts.append(unrolled("i", cut.accumulators, clear))
        turn = self._pipelined if self._slots == 2 else self._simple
        if self._slots == 2:
            stmts += [wait_and_barrier(ahead - 1), self._load(thread, 0, 0)]
        stmts.append(loop("k_tile", cut.k_tiles, lambda tile: turn(thread, tile)))
        return sequence(stmts)

    def _pipelined(self, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Multiply a tile while the fragments of the next k16 are loaded."""
        ahead, last = self._cut.stages - 1, self._steps - 1
        stmts = []
        for k16 in range(self._steps):
            if k16 == last:
                stmts += [self._ahead("finish", thread, tile), self._advance(WRITE)]
                stmts += [wait_and_barrier(ahead - 1), self._advance(READ)]
            stmts.append(self._load(thread, (k16 + 1) % self._steps, (k16 + 1) % 2))
            if k16 == 0:
                stmts += [self._ahead("begin", thread, tile), commit()]
            stmts.append(self._multiply(k16 % 2))
        return sequence(stmts)

    def _simple(self, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Multiply a tile, loading each of its fragments before it is used."""
        stmts = [wait_and_barrier(self._cut.stages - 2)]
        stmts += [self._ahead("begin", thread, tile), commit()]
        for k16 in range(self._steps):
            stmts += [self._load(thread, k16, 0), self._multiply(0)]
        stmts.append(self._ahead("finish", thread, tile))
        return sequence([*stmts, self._advance(WRITE), self._advance(READ)])

    def _advance(self, pointer: int) -> tirx.Stmt:
        """Go on to the next stage of the ring."""
        word, size = load(self._words, [index(pointer)]), self._stage_words
        last = tirx.const((self._cut.stages - 1) * size, "int32")
        zero, step = tirx.const(0, "int32"), tirx.const(size, "int32")
        return tirx.BufferStore(
            self._words, tirx.Select(word == last, zero, word + step), [pointer]
        )

    def _word(self, pointer: int) -> ir.Expr:
        return tirx.Cast("int64", load(self._words, [index(pointer)]))

    def _ahead(self, do: str, thread: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Begin or finish the copy of the tile that a stage is free for, if there is one."""
        ahead = tile + (self._cut.stages - 1)
        return when(ahead < self._cut.k_tiles, self._copy(do, thread, ahead, self._word(WRITE)))

    def _copy(self, do: str, thread: ir.Expr, tile: ir.Expr, word: ir.Expr) -> tirx.Stmt:
        """Copy the tiles of A and B to a stage."""
        cut, where = self._cut, self._cut.axes_at(self._place.batch)
        k_tile = self._place.rank * cut.k_tiles + tile
        sides = (
            (self._a, self._place.m_tile * cut.block_m, word),
            (self._b, self._place.n_tile * cut.block_n, word + self._a.words),
        )
        return sequence(
            [
                getattr(operand, do)(thread, where, first, k_tile, (self._shared, start))
                for operand, first, start in sides
            ]
        )

    def _load(self, thread: ir.Expr, k16: int, slot: int) -> tirx.Stmt:
        """Load a warp's fragments of A and B, of the stage that is read."""
        cut = self._cut
        k_slice, warp_m, warp_n = self.warp_of(thread)
        step = k_slice * self._steps + k16
        sides = (
            (self._a, self._frags[0], warp_m * cut.warp_m, cut.warp_m // M16, 0),
            (self._b, self._frags[1], warp_n * cut.warp_n, cut.warp_n // M16, self._a.words),
        )
        stmts = []
        for operand, frags, first, count, start in sides:

            def one(
                i: ir.Expr, operand=operand, frags=frags, first=first, count=count, start=start
            ) -> tirx.Stmt:
                word = self._lane_word(operand, thread, first + i * M16, step)
                to = load(frags, [(slot * count + i) * FRAGMENT])
                row = load(self._shared, [self._word(READ) + start + word])
                return ldmatrix_x4(to, row, not operand.is_k_contiguous)

            stmts.append(unrolled("i", count, one))
        return sequence(stmts)

    def _lane_word(
        self, operand: OperandTile, thread: ir.Expr, first: ir.Expr, step: ir.Expr
    ) -> ir.Expr:
        """Give the word of the row that a lane passes to ldmatrix.

        The four matrices are in the order of the registers of an mma: of A the lower k of rows 0 to
        7 and 8 to 15, then the upper k; of B the lower and upper k of each eight columns.
        """
        lane = tirx.floormod(thread, index(WARP))
        row = tirx.floormod(lane, 8)
        high, high_k = tirx.floormod(tirx.floordiv(lane, 8), 2), tirx.floordiv(lane, 16)
        if operand is self._b:
            high, high_k = high_k, high
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
                a = load(a_frag, [(slot * self.slabs + i) * FRAGMENT])
                b = load(b_frag, [slot * columns * FRAGMENT + j * K_PER_THREAD])
                return mma_fragments(self._cut.half, acc, a, b)

            return unrolled("j", self.n8, one)

        return unrolled("i", self.slabs, row)
