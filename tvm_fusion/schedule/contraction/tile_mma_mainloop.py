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
A warp has k16 of its slice of each stage (slice-K). A k16 is 32 bytes: 16 terms of half types, 32
of bytes, 8 of float32. float32 that is contiguous along M or N is loaded word by word.

Of float32 that keeps its precision (3xTF32), operands are split into tfloat32, x = hi + lo:
  for k16:           part += a.hi * b.hi;  small += a.lo * b.hi + a.hi * b.lo
  behind each tile:  acc += part;  part = 0    tensor cores cut sums off, CUDA cores round them
  at the end:        acc += small, where acc is finite
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import index, local, loop, sequence, unrolled, when
from ..gpu.cp_async import commit
from ..gpu.ldmatrix import ldmatrix_x4
from ..gpu.mma import (
    ACCUMULATORS,
    GROUPS,
    HALF_TYPES,
    THREADS_IN_GROUP,
    WARP,
    mma_fragments,
    mma_split_fragments,
)
from ..gpu.shared_tiles import block_barrier, load_shared, touch, wait_and_barrier
from ..gpu.swizzle import exchanged
from .tile_gemm_config import TileGemmConfig, TilePlace
from .tile_operand import WORD_BYTES, WORDS, OperandTile
from .tile_shape import CHUNK_BYTES, M16

FRAGMENT_WORDS = 4  # of a thread, of 16 rows and 32 bytes of k
CHUNKS = 2  # of 32 bytes of k
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
        self._steps = cut.block_k // cut.k_step // cut.warps_k
        self._slots = 2 if self._steps % 2 == 0 else 1
        self.acc = local("acc", [cut.accumulators], cut.contraction.dtype)
        # Bytes are held in words: the addresses of registers are those of words.
        held = cut.a_dtype if cut.a_dtype in HALF_TYPES else "uint32"
        self._fragment = FRAGMENT_WORDS * (2 if cut.a_dtype in HALF_TYPES else 1)
        self._frags = [
            local(f"{name}_frag", [self._slots * size // M16 * self._fragment], held)
            for name, size in (("a", cut.warp_m), ("b", cut.warp_n))
        ]
        self._stage_words = self._a.words + self._b.words
        self._words = local("stage_word", [2], "int32")
        self.buffers = [self.acc, self._words, *self._frags, *self._a.buffers, *self._b.buffers]
        self._parts: list[ir.Var] = []
        if cut.products > 1:
            names = ("part", "small")
            self._parts = [local(n, [cut.accumulators], cut.contraction.dtype) for n in names]
            self.buffers += self._parts

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
            zero = tirx.const(0, cut.contraction.dtype)
            return sequence([tirx.BufferStore(b, zero, [i]) for b in (self.acc, *self._parts)])

        by_address = *self._frags, self._shared, *self._a.by_address, *self._b.by_address
        stmts = [touch(b, int(b.ty.shape[0]) - 1) for b in by_address]
        where = cut.axes_at(self._place.batch)
        stmts.append(self._a.prepare(thread, where, self._place.m_tile * cut.block_m))
        stmts.append(self._b.prepare(thread, where, self._place.n_tile * cut.block_n))

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
        promote = [self._promote()] if self._parts else []
        stmts.append(
            loop("k_tile", cut.k_tiles, lambda tile: sequence([turn(thread, tile), *promote]))
        )
        return sequence([*stmts, self._add_small()] if self._parts else stmts)

    def _promote(self) -> tirx.Stmt:
        """Add the sums of a tile to those of all."""
        part, _ = self._parts

        def add(i: ir.Expr) -> tirx.Stmt:
            total = load(self.acc, [i]) + load(part, [i])
            zero = tirx.const(0, self._cut.contraction.dtype)
            return sequence(
                [tirx.BufferStore(self.acc, total, [i]), tirx.BufferStore(part, zero, [i])]
            )

        return unrolled("i", self._cut.accumulators, add)

    def _add_small(self) -> tirx.Stmt:
        """Add the products with lower halves, which are NaN for an infinite operand."""
        _, small = self._parts

        def add(i: ir.Expr) -> tirx.Stmt:
            total = load(self.acc, [i])
            is_finite = tirx.abs(total) <= tirx.max_value("float32")
            return tirx.BufferStore(
                self.acc, tirx.Select(is_finite, total + load(small, [i]), total), [i]
            )

        return unrolled("i", self._cut.accumulators, add)

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
                to = load(frags, [(slot * count + i) * self._fragment])
                if cut.item_bytes == WORD_BYTES and not operand.is_k_contiguous:
                    return self._load_words(operand, frags, thread, first, step, start, slot, i)
                word = self._lane_word(operand, thread, first + i * M16, step)
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
        by = operand.swizzle(row)
        if operand.is_k_contiguous:
            line, chunk = first + high * 8 + row, step * CHUNKS + high_k
        else:
            line = step * self._cut.k_step + high_k * 8 + row
            chunk = tirx.floordiv(first, self._cut.chunk) + high
        return (line * operand.row_chunks + exchanged(chunk, by)) * WORDS

    def _load_words(
        self,
        operand: OperandTile,
        frags: ir.Var,
        thread: ir.Expr,
        tile: ir.Expr,
        step: ir.Expr,
        start: int,
        slot: int,
        i: ir.Expr,
    ) -> tirx.Stmt:
        """Load a fragment of 16 rows of float32 that rows of a tile have along M or N.

        A thread has k threadID_in_group of rows groupID and groupID + 8, then the k four further:
        in the order of the registers of an mma, of B for each eight columns.
        """
        lane = tirx.floormod(thread, index(WARP))
        group = tirx.floordiv(lane, index(THREADS_IN_GROUP))
        k = tirx.floormod(lane, index(THREADS_IN_GROUP))
        size = CHUNK_BYTES // WORD_BYTES
        count = (self._cut.warp_m if operand is self._a else self._cut.warp_n) // M16
        stmts = []
        for number in range(FRAGMENT_WORDS):
            high_k, high = divmod(number, 2) if operand is self._a else divmod(number, 2)[::-1]
            line = step * self._cut.k_step + high_k * THREADS_IN_GROUP + k
            column = tile + i * M16 + high * GROUPS + group
            chunk = exchanged(tirx.floordiv(column, size), operand.swizzle(line))
            word = (line * operand.row_chunks + chunk) * size + tirx.floormod(column, size)
            to = load(frags, [(slot * count + i) * self._fragment + number])
            place = load(self._shared, [self._word(READ) + start + word])
            stmts.append(load_shared(to, place, WORD_BYTES))
        return sequence(stmts)

    def _multiply(self, slot: int) -> tirx.Stmt:
        """Multiply all fragments of A with all of B."""
        a_frag, b_frag = self._frags
        columns = self.n8 // 2

        def row(i: ir.Expr) -> tirx.Stmt:
            def one(j: ir.Expr) -> tirx.Stmt:
                first = (i * self.n8 + j) * ACCUMULATORS
                a = load(a_frag, [(slot * self.slabs + i) * self._fragment])
                b = load(b_frag, [slot * columns * self._fragment + j * (self._fragment // 2)])
                if self._parts:
                    part, small = (load(x, [first]) for x in self._parts)
                    return mma_split_fragments(part, small, a, b)
                acc = load(self.acc, [first])
                return mma_fragments(self._cut.a_dtype, self._cut.b_dtype, acc, a, b)

            return unrolled("j", self.n8, one)

        return unrolled("i", self.slabs, row)
