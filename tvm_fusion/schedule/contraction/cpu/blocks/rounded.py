"""Many rows times weights in blocks on tile registers, both rounded to bfloat16 (AMX).

    for panel of columns, pass over K:  numbers times their scales, in VNNI order
      for tile of rows:  C += A * B                                        (..tile_product)

Sums of blocks of 32 in integers are scaled in vectors, block by block, which takes twice as long as
the tiles: products of bfloat16 are added up in the tiles, over all of K. Each factor is off by less
than 2^-8 of it, rows that were rounded to int8 by half of 1/127 of the largest of their block. It
needs the user's leave (``approximate``).
"""

from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load
from .....core.tir.loops import constant, index, loop, sequence, when
from .....device import Device
from .....program.stage import Axis
from ....instructions.table import find
from ....instructions.tiles import TILE_ROWS, keep_extents
from ...problem.gemm_view import GemmView
from ..blocking import Blocking
from ..operands.b import OperandB, Panel
from ..tile_product import MOST_WORDS, TileProduct
from .product import BlockProduct, bound
from .weights import BlockWeights

_GROUP, _HALF = 2, "bfloat16"  # terms of a word
_UPPER, _TIE = 0xFFFF0000, 0x8000  # the bits of a float32 that a bfloat16 has; half of the last one


def rounded_product(view: GemmView, blocks: BlockProduct, device: Device) -> TileProduct | None:
    """Choose the instruction for both operands in bfloat16; ``None`` where it may not be used."""
    row = find(device, "amx", _HALF, _HALF)
    k = constant(blocks.axis.extent) or 1
    is_whole = blocks.size % (_GROUP * MOST_WORDS) == 0 and k % blocks.size == 0
    if not device.approximates or row is None or not is_whole or blocks.lanes != TILE_ROWS:
        return None
    a = tirx.Cast("float32", tirx.Cast(_HALF, view.a))
    return TileProduct(row.n, _HALF, _HALF, blocks.axis, a, row, MOST_WORDS)


def in_words(view: GemmView) -> GemmView:
    """Count K in words of two terms."""
    (axis,) = view.k_axes
    words = Axis(tirx.Var("word", "int64"), index((constant(axis.extent) or 1) // _GROUP))
    return replace(view, k_axes=(words,))


class RoundedPanels(OperandB):
    """Panels that a task unpacks for one pass over K."""

    def __init__(self, packed: BlockWeights, view: GemmView, sizes: Blocking) -> None:
        super().__init__(view, sizes.nr)
        self._packed, self._parts = packed, sizes.nr // packed.width
        shape = [index(sizes.kc), index(sizes.nr)]
        self._buffer = declare(shape, "uint32", "panel")

    def buffers(self) -> list[ir.Var]:
        """Return the unpacked panel."""
        return [self._buffer]

    def fill(self, first: Panel, count: ir.Expr) -> tirx.Stmt:
        """Unpack a panel, block by block."""
        words = self._packed.size // _GROUP
        blocks = tirx.floordiv(index(first.k), index(words))
        panels = -(-(constant(self.view.n_axes[-1].extent) or 1) // self._packed.width)

        def part(n: int) -> tirx.Stmt:
            number = first.number * self._parts + n
            start = tirx.floordiv(first.first_k, index(words))
            panel = replace(first, number=number, first_k=start, k=blocks)
            stmt = loop("block", blocks, lambda block: self._block(panel, block, n))
            return stmt if panels % self._parts == 0 else when(number < panels, stmt)

        return sequence([keep_extents(self._buffer), *map(part, range(self._parts))])

    def _block(self, panel: Panel, block: ir.Expr, part: int) -> tirx.Stmt:
        packed, lanes = self._packed, TILE_ROWS
        terms = 32 // packed.weights.bits  # of a word
        vectors = [tirx.Ramp(index(n), index(1), lanes) for n in range(0, packed.width, lanes)]
        stmts: list[tirx.Stmt] = list(packed.ask_ahead(panel, block, vectors))
        for v in vectors:
            start = int(v.base)
            to = tirx.Ramp(index(part * packed.width + start), index(1), lanes)
            scale = bound(stmts, "scale", packed.scale(panel, block, v))
            minimum: ir.Expr | None = None
            if packed.has_minimum:
                minimum = bound(stmts, "minimum", packed.minimum(panel, block, v))

            def bits(found: ir.Var, term: int, v=v, scale=scale, minimum=minimum) -> ir.Expr:
                value = packed.number(found, term, panel, block, v) * scale
                value = value if minimum is None else value - minimum
                return tirx.reinterpret(f"uint32x{lanes}", value) + _all(_TIE, lanes)

            def word(number: ir.Expr, v=v, to=to, bits=bits) -> tirx.Stmt:
                inner: list[tirx.Stmt] = []
                found = bound(inner, "word", packed.word(panel, block, number, v))
                for pair in range(terms // _GROUP):
                    low, high = (bits(found, _GROUP * pair + n) for n in range(_GROUP))
                    low = tirx.shift_right(low, _all(16, lanes))
                    joined = tirx.bitwise_or(low, tirx.bitwise_and(high, _all(_UPPER, lanes)))
                    row = block * (packed.size // _GROUP) + number * (terms // _GROUP) + pair
                    inner.append(tirx.BufferStore(self._buffer, joined, [row, to]))
                return sequence(inner)

            stmts.append(loop("word", packed.words, word))
        return sequence(stmts)

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read a word of the unpacked panel."""
        return load(self._buffer, [reduced[-1], lane])


def _all(value: int, lanes: int) -> ir.Expr:
    return tirx.Broadcast(tirx.const(value, "uint32"), lanes)
