"""Operands in blocks for tile registers: rows in tiles, and panels that a task unpacks."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load
from .....core.tir.loops import index, loop, sequence, vectorized
from ....instructions.tiles import (
    TILE_ROW_BYTES,
    TILE_ROWS,
    TileAddress,
    TileShape,
    configure,
    keep_extents,
    release,
    tile_config,
)
from ....math.vector_math import vector_math
from ...problem.block_quantized import BlockQuantized
from ...problem.functions.packing import Reordered
from ...problem.gemm_view import GemmView
from ..operands.a import RowBlock
from ..operands.b import OperandB, Panel
from .bytes import ByteBlocks, ByteRows
from .product import BlockProduct, BlockRows, lanes_of
from .weights import BlockWeights, low_bits

# Blocks whose sums are scaled together: loads of what a tile was just stored to would wait for it.
GROUP = 4
PARTS = 3  # bfloat16 of a float32
WORD_BYTES, _BITS = 4, 32
_UPPER = -0x10000  # the bits of a float32 that a bfloat16 has


@dataclass(frozen=True)
class BlockTiles:
    """How a block of A and of B lies in tile registers."""

    size: int  # terms of a block
    count: int  # blocks of K
    group: int  # terms of a word
    parts: int  # tiles of A of a step: of float32 the three bfloat16 that it is the sum of

    @property
    def words(self) -> int:
        """Words of a step: rows of a tile of B."""
        return min(TILE_ROW_BYTES // WORD_BYTES, self.size // self.group)

    @property
    def steps(self) -> int:
        """Steps of a block."""
        return self.size // (self.group * self.words)

    @property
    def is_bytes(self) -> bool:
        """Whether bytes are multiplied, rather than bfloat16."""
        return self.group == WORD_BYTES


class TiledRows:
    """Rows of a task in tiles, and what the tile registers of a task need besides.

    Parameters
    ----------
    rows
        Of a task: whole tiles.
    """

    def __init__(self, blocks: BlockTiles, rows: int) -> None:
        self._blocks = blocks
        self._width = blocks.words * blocks.group
        shape = [
            rows // TILE_ROWS,
            blocks.count,
            blocks.steps,
            blocks.parts,
            TILE_ROWS,
            self._width,
        ]
        dtype = "uint16" if not blocks.is_bytes else "int8"
        self.tiles = declare([index(d) for d in shape], dtype, "tiles")
        sums = "float32" if not blocks.is_bytes else "int32"
        shape = [2 * GROUP, TILE_ROWS, TILE_ROWS]
        self.sums = declare([index(d) for d in shape], sums, "tile_sums")
        self._config = tile_config()
        self.buffers = [self.tiles, self.sums, self._config]

    def place(
        self, row: ir.Expr, block: ir.Expr, step: int, part: int, term: ir.Expr
    ) -> list[ir.Expr]:
        """Tell where a term of a row is."""
        tile, inside = tirx.floordiv(row, index(TILE_ROWS)), tirx.floormod(row, index(TILE_ROWS))
        return [tile, block, index(step), index(part), inside, term]

    def address(self, row: ir.Expr, block: ir.Expr, step: int, part: int) -> TileAddress:
        """Tell where the tile is that begins at a row."""
        element = load(self.tiles, self.place(row, block, step, part, index(0)))
        return TileAddress(element, self._blocks.words * WORD_BYTES)

    def begin(self) -> list[tirx.Stmt]:
        """Shape the tile registers."""
        words = self._blocks.words
        a = TileShape(TILE_ROWS, words * WORD_BYTES)
        sums, b = TileShape(TILE_ROWS, TILE_ROW_BYTES), TileShape(words, TILE_ROW_BYTES)
        shapes = [*[sums] * GROUP, b, b, a, a]
        kept = [keep_extents(self.tiles), keep_extents(self.sums)]
        return [*kept, configure(self._config, shapes)]

    def lines(
        self, count: ir.Expr, line: Callable[[ir.Expr, ir.Expr, int, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Write ``line(row, block, step, first term)`` for all steps of the rows of a task."""
        blocks, size = self._blocks, self._width

        def step(row: ir.Expr, block: ir.Expr) -> tirx.Stmt:
            first = block * blocks.size
            return sequence([line(row, block, n, first + n * size) for n in range(blocks.steps)])

        return loop("row", count, lambda i: loop("block", blocks.count, lambda n: step(i, n)))


class FloatTiles(BlockRows):
    """Rows of float32, each in the three tiles of bfloat16 that it is the sum of."""

    def __init__(
        self, view: GemmView, product: BlockProduct, blocks: BlockTiles, rows: int
    ) -> None:
        super().__init__(view, product, rows)
        self.tiled = TiledRows(blocks, rows)

    def buffers(self) -> list[ir.Var]:
        """Return the tiles."""
        return [*self.tiled.buffers, *super().buffers()]

    def fill(self, rows: RowBlock) -> tirx.Stmt:
        """Split the rows of a task."""
        width = self.tiled.tiles.ty.shape[-1]

        def line(row: ir.Expr, block: ir.Expr, step: int, first: ir.Expr) -> tirx.Stmt:
            def store(lane: ir.Expr) -> tirx.Stmt:
                rest: ir.Expr = vector_math(self.value(self.view.a, rows, row, first + lane))
                stores = []
                for part in range(PARTS):
                    bits = tirx.reinterpret("int32", rest)
                    word = tirx.Cast("uint16", tirx.shift_right(bits, tirx.const(16, "int32")))
                    place = self.tiled.place(row, block, step, part, lane)
                    stores.append(tirx.BufferStore(self.tiled.tiles, word, place))
                    upper = tirx.bitwise_and(bits, tirx.const(_UPPER, "int32"))
                    upper = tirx.reinterpret("float32", upper)
                    none = tirx.const(0.0, "float32")
                    rest = tirx.Select(tirx.EQ(rest, upper), none, rest - upper)  # of infinity, too
                return sequence(stores)

            return vectorized(int(width), store)

        count = tirx.min(index(self.height), self.rows - rows.start)
        totals = super().fill(rows)
        before = self.tiled.begin() if totals is None else [*self.tiled.begin(), totals]
        return sequence([*before, self.tiled.lines(count, line)])

    def end(self) -> list[tirx.Stmt]:
        """Give the tile registers up."""
        return [release()]


class ByteTiles(ByteRows):
    """Rows of int8, copied in tiles."""

    def __init__(self, view: GemmView, product: ByteBlocks, blocks: BlockTiles, rows: int) -> None:
        super().__init__(view, product, rows, 0 if is_signed(product.weights) else 1)
        self.tiled = TiledRows(blocks, rows)

    def buffers(self) -> list[ir.Var]:
        """Return the tiles and the sums of blocks."""
        return [*self.tiled.buffers, *super().buffers()]

    def fill(self, rows: RowBlock) -> tirx.Stmt:
        """Copy the rows of a task."""
        tiles, numbers = self.tiled.tiles, self.numbers
        width = int(tiles.ty.shape[-1])

        def line(row: ir.Expr, block: ir.Expr, step: int, first: ir.Expr) -> tirx.Stmt:
            def store(lane: ir.Expr) -> tirx.Stmt:
                value = self.value(numbers, rows, row, first + lane)
                place = self.tiled.place(row, block, step, 0, lane)
                return tirx.BufferStore(tiles, value, place)

            return vectorized(width, store)

        count = tirx.min(index(self.height), self.rows - rows.start)
        sums = super().fill(rows)
        before = self.tiled.begin() if sums is None else [*self.tiled.begin(), sums]
        return sequence([*before, self.tiled.lines(count, line)])

    def end(self) -> list[tirx.Stmt]:
        """Give the tile registers up."""
        return [release()]


class UnpackedTiles(OperandB):
    """Packed weights, of which a task unpacks a panel for all of its rows."""

    def __init__(self, packed: BlockWeights, blocks: BlockTiles) -> None:
        super().__init__(packed.view, packed.width)
        self.packed_weights, self._blocks = packed, blocks
        words, vectors = blocks.words * blocks.steps, packed.width // TILE_ROWS
        shape = [index(d) for d in (vectors, blocks.count, words, TILE_ROWS)]
        self._buffer = declare(shape, "int32", "panel")

    @property
    def packed(self) -> list[Reordered]:
        """The packed constants."""
        return self.packed_weights.packed

    def buffers(self) -> list[ir.Var]:
        """Return the unpacked panel."""
        return [self._buffer]

    def fill(self, first: Panel, count: ir.Expr) -> tirx.Stmt:
        """Keep the buffer's extents."""
        return keep_extents(self._buffer)

    def begin_panel(self, panel: Panel) -> tirx.Stmt:
        """Unpack a panel."""
        blocks, packed = self._blocks, self.packed_weights
        lanes = TILE_ROWS
        rows = _BITS // packed.weights.bits // blocks.group  # of a word

        def word(block: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            stmts: list[tirx.Stmt] = []
            for vector in range(self.width // lanes):
                v = tirx.Ramp(index(vector * lanes), index(1), lanes)
                found = tirx.Var("word", f"int32x{lanes}")
                stmts.append(tirx.Bind(found, packed.word(panel, block, number, v)))
                for row in range(rows):
                    every = tirx.Ramp(index(0), index(1), lanes)
                    place = [index(vector), block, number * rows + row, every]
                    value = self._word(found, row, panel, block, v)
                    stmts.append(tirx.BufferStore(self._buffer, value, place))
            return sequence(stmts)

        def one(block: ir.Expr) -> tirx.Stmt:
            return loop("word", packed.words, lambda n: word(block, n))

        return loop("block", panel.k, one)

    def _word(
        self, packed: ir.Var, row: int, panel: Panel, block: ir.Expr, v: tirx.Ramp
    ) -> ir.Expr:
        """Unpack a row of words: four bytes, or two bfloat16."""
        weights, lanes = self.packed_weights, v.lanes
        bits, zero = weights.weights.bits, weights.constant_zero
        if self._blocks.is_bytes:
            word: ir.Expr = packed
            if bits < 8:
                word = tirx.shift_right(packed, lanes_of(row * bits, lanes)) if row else packed
                word = tirx.bitwise_and(word, lanes_of(low_bits(bits), lanes))
            if not zero or not is_signed(weights.weights):
                return word
            several = f"int8x{lanes * 4}"
            shift = tirx.Broadcast(tirx.const(_as_int8(int(zero)), "int8"), lanes * 4)
            numbers = tirx.reinterpret(several, word) - shift
            return tirx.reinterpret(f"int32x{lanes}", numbers)
        if bits < 8 and zero is not None:
            # A permutation reads the five lowest bits of each half: a table of all numbers.
            values = [tirx.const(_bfloat16(n % (1 << bits) - zero), "int16") for n in range(32)]
            table = tirx.Shuffle(values, [tirx.const(n, "int32") for n in range(32)])
            moved = tirx.shift_right(packed, lanes_of(row * bits, lanes)) if row else packed
            name, halves = "llvm.x86.avx512.permvar.hi.512", tirx.reinterpret("int16x32", moved)
            found = tirx.call_llvm_pure_intrin("int16x32", name, table, halves)
            return tirx.reinterpret("int32x16", found)
        first, second = (
            tirx.reinterpret(f"int32x{lanes}", self._number(packed, place, panel, block, v))
            for place in (weights.shift_of(2 * row), weights.shift_of(2 * row + 1))
        )
        low = tirx.bitwise_and(
            tirx.shift_right(first, lanes_of(16, lanes)), lanes_of(0xFFFF, lanes)
        )
        return tirx.bitwise_or(low, tirx.bitwise_and(second, lanes_of(_UPPER, lanes)))

    def _number(
        self, packed: ir.Var, place: int, panel: Panel, block: ir.Expr, v: tirx.Ramp
    ) -> ir.Expr:
        weights, lanes = self.packed_weights, v.lanes
        moved = tirx.shift_right(packed, lanes_of(place, lanes)) if place else packed
        moved = tirx.bitwise_and(moved, lanes_of((1 << weights.weights.bits) - 1, lanes))
        return tirx.Cast(f"float32x{lanes}", moved) - weights.zero(panel, block, v)

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the first word of a block."""
        return self.packed_weights.at(panel, reduced, lane)

    def address(self, vector: int, block: ir.Expr, step: int) -> TileAddress:
        """Tell where a tile is."""
        place = [index(vector), block, index(step * self._blocks.words), index(0)]
        return TileAddress(load(self._buffer, place), TILE_ROW_BYTES)


def is_signed(weights: BlockQuantized) -> bool:
    """Whether numbers less their zero point are integers of int8, the same zero everywhere."""
    if not isinstance(weights.zero.value, tirx.FloatImm):
        return False
    zero = float(weights.zero.value.value)
    return zero.is_integer() and weights.low - zero >= -128 and weights.high - zero <= 127


def _as_int8(number: int) -> int:
    return (number + 128) % 256 - 128


def _bfloat16(number: float) -> int:
    """Return the bits of a small integer in bfloat16, as an int16."""
    (bits,) = struct.unpack("<i", struct.pack("<f", number))
    return bits >> 16
