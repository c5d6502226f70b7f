"""Weights in blocks on tile registers (AMX): of bytes, or of bfloat16 that are exactly float32.

    rows of the task in tiles:  bytes, or the three bfloat16 that a float32 is the sum of
    for panel of 16 columns:    its numbers as bytes, or as bfloat16, in VNNI order
      for tile of 16 rows, block:
        tile = products of the block               one instruction, or three for the parts of A
        acc += tile * scale (of A and of B)        vectors

Numbers of 8 bits and fewer are exact in bfloat16, and so are their products in float32. A float32
has 24 bits, which three bfloat16 of 8 bits hold: what is rounded is the sum alone, as elsewhere.
"""

from dataclasses import dataclass

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import constant, index, loop, sequence, unrolled
from ....cpu.register_tile import VectorUnit
from ....instructions.instruction import Instruction
from ....instructions.tiles import (
    TILE_ROW_BYTES,
    TILE_ROWS,
    TileAddress,
    load_tile,
    multiply_tiles,
    store_tile,
    zero,
)
from ...problem.block_quantized import BlockQuantized
from ...problem.gemm_view import GemmView
from ..accumulators import TilePlace, VectorAccumulators
from ..operands.a import OperandA
from ..operands.b import OperandB
from .bytes import ByteBlocks
from .product import BlockProduct, BlockRows, bound
from .tile_operands import (
    GROUP,
    PARTS,
    BlockTiles,
    ByteTiles,
    FloatTiles,
    UnpackedTiles,
    is_signed,
)
from .weights import BlockWeights

_B, _A = GROUP, GROUP + 2  # tile registers behind those of sums


@dataclass(frozen=True)
class TileBlocks(BlockProduct):
    """Products on tile registers."""

    row: Instruction  # the instruction
    bytes: ByteBlocks | None  # the product of the same bytes in vectors; None of float32

    speed = 8

    @property
    def multiplies_bytes(self) -> bool:  # type: ignore[override]
        """Whether A is of bytes."""
        return self.bytes is not None

    @property
    def tiles(self) -> BlockTiles:
        """How blocks lie in tile registers."""
        count = constant(self.blocks.extent) or 1
        return BlockTiles(self.size, count, *((2, PARTS) if self.bytes is None else (4, 1)))

    @property
    def term_bytes(self) -> int:  # type: ignore[override]
        """Bytes of a term of A."""
        return 2 * PARTS if self.bytes is None else 1

    def rows(self, unit: VectorUnit, vectors: int) -> int:
        """Return the rows of a tile."""
        return TILE_ROWS

    def operand_a(self, view: GemmView, rows: int) -> BlockRows:
        """Copy A in tiles."""
        if self.bytes is None:
            return FloatTiles(view, self, self.tiles, rows)
        return ByteTiles(view, self.bytes, self.tiles, rows)

    def operand_b(self, packed: BlockWeights) -> UnpackedTiles:
        """Unpack panels in tiles."""
        return UnpackedTiles(packed, self.tiles)

    def accumulators(
        self, view: GemmView, place: TilePlace, a: OperandA, b: OperandB
    ) -> VectorAccumulators:
        """Hold the sums of a tile."""
        assert isinstance(a, FloatTiles | ByteTiles)
        assert isinstance(b, UnpackedTiles)
        return TileBlockAccumulators(view, place, a, b, self)


class TileBlockAccumulators(VectorAccumulators):
    """Sums in vector registers; those of one block come from a tile register."""

    def __init__(
        self,
        view: GemmView,
        place: TilePlace,
        a: FloatTiles | ByteTiles,
        b: UnpackedTiles,
        blocks: TileBlocks,
    ) -> None:
        super().__init__(view, place, "float32", (a, b), None)
        self._rows, self._panels, self._blocks, self._where = a, b, blocks, place

    def accumulate(self) -> tirx.Stmt:
        """Multiply 16 columns after the other, some blocks at a time."""
        lanes = self._blocks.lanes
        full, rest = divmod(self._blocks.tiles.count, GROUP)

        def column(vector: int) -> tirx.Stmt:
            stmts = [loop("blocks", full, lambda n: self._group(vector, n, GROUP))]
            if rest:
                stmts.append(self._group(vector, index(full), rest))
            return sequence(stmts)

        return sequence([column(v) for v in range(-(-self._where.width // lanes))])

    def _group(self, vector: int, number: ir.Expr, count: int) -> tirx.Stmt:
        """Multiply some blocks, then scale their sums, which are in memory by then."""
        lanes = tirx.Ramp(index(vector * self._blocks.lanes), index(1), self._blocks.lanes)
        first, stmts = number * GROUP, []
        slot = tirx.floormod(number, index(2)) * GROUP
        for n in range(count):
            stmts.append(self._product(vector, first + n, n, slot + n))
        scaled = loop("n", count, lambda n: self._scaled(lanes, first + n, slot + n))
        return sequence([*stmts, scaled])

    def _product(self, vector: int, number: ir.Expr, tile: int, slot: ir.Expr) -> tirx.Stmt:
        """Multiply a block in a tile register, and store the sums."""
        place, tiled, blocks = self._where, self._rows.tiled, self._blocks.tiles
        first, a, b = place.rows.slot + place.offset, _A + tile % 2, _B + tile % 2
        stmts = [zero(tile)]
        for step in range(blocks.steps):
            stmts.append(load_tile(b, self._panels.address(vector, number, step)))
            for part in reversed(range(blocks.parts)):  # the smallest first
                stmts.append(load_tile(a, tiled.address(first, number, step, part)))
                stmts.append(multiply_tiles(self._blocks.row, a, b, tile))
        sums = TileAddress(load(tiled.sums, [slot, index(0), index(0)]), TILE_ROW_BYTES)
        return sequence([*stmts, store_tile(tile, sums)])

    def _scaled(self, lanes: tirx.Ramp, number: ir.Expr, slot: ir.Expr) -> tirx.Stmt:
        """Add the sums of a block, scaled, to those of all blocks."""
        blocks, place, rows = self._blocks, self._where, self._rows
        weights, panel = self._panels.packed_weights, place.panel
        every = tirx.Ramp(index(0), index(1), blocks.lanes)
        binds: list[tirx.Stmt] = []
        scale = bound(binds, "scale", weights.scale(panel, number, lanes))
        has_zero = blocks.bytes is not None and not is_signed(weights.weights)
        zeros = bound(binds, "zero", weights.zero(panel, number, lanes)) if has_zero else None
        minimum = weights.minimum(panel, number, lanes) if weights.has_minimum else None
        minimum = None if minimum is None else bound(binds, "minimum", minimum)

        def row(i: ir.Expr) -> tirx.Stmt:
            found: ir.Expr = load(rows.tiled.sums, [slot, i, every])
            own = place.offset + i
            if isinstance(rows, ByteTiles):
                found = tirx.Cast(f"float32x{blocks.lanes}", found)
                if zeros is not None:
                    total = tirx.Cast("float32", rows.sum(place.rows, own, number))
                    found = found - zeros * tirx.Broadcast(total, blocks.lanes)
                of_a = rows.scale(place.rows, own, number * blocks.size, place.clamp)
                found = found * tirx.Broadcast(of_a, blocks.lanes)
            found = rows.without_minimum(found * scale, place.rows, own, number, minimum)
            value = load(self.buffer, [i, lanes]) + found
            return tirx.BufferStore(self.buffer, value, [i, lanes])

        return sequence([*binds, unrolled("i", place.height, row)])


def is_exact_in_bfloat16(weights: BlockQuantized) -> bool:
    """Whether numbers less their zero points are integers of at most 8 bits and a sign."""
    found = weights.zero.value
    if isinstance(found, tirx.FloatImm):
        zero = float(found.value)
        return zero.is_integer() and max(abs(weights.low - zero), abs(weights.high - zero)) <= 256
    is_byte = isinstance(found, tirx.Cast) and str(found.value.ty.dtype) in ("int8", "uint8")
    return is_byte and weights.high - weights.low <= 255
