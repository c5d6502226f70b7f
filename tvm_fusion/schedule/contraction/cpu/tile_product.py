"""Products on tile registers (AMX): groups of k as dot products have them, by steps of a tile row.

B's panels are as dot products have them, too: a word of K, columns next to each other, which is the
order of a tile. K is padded with zero words to whole steps.
"""

from dataclasses import dataclass, replace

from tvm import ir, tirx

from ....core.tir.loops import ceildiv, constant, index, product, simplified
from ....device import Device
from ....program.stage import Axis
from ...cpu.tile_block import WORD_BYTES
from ...instructions.instruction import Instruction
from ...instructions.table import find
from ...instructions.tiles import TILE_ROW_BYTES
from ..problem.gemm_view import GemmView
from ..problem.sum_of_products import SumOfProducts
from .dot_products import WordProduct, uncast

LEAST = 1 << 15  # multiplications: of fewer, shaping the tiles and storing them takes longer
SPEEDUP = 8  # of products on tile registers, over vectors
MOST_WORDS = TILE_ROW_BYTES // WORD_BYTES


@dataclass(frozen=True)
class TileProduct(WordProduct):
    """An instruction that multiplies tiles, for a GEMM."""

    row: Instruction
    words: int  # words of K in a step

    @property
    def core(self) -> ir.Expr:
        """A as it is multiplied."""
        return uncast(self.a)

    def groups(self, view: GemmView) -> GemmView:
        """View K in words, padded with zeros to whole steps."""
        view = super().groups(view)
        *outer, axis = view.k_axes
        steps = ceildiv(axis.extent, self.words)
        whole = simplified(steps * self.words)
        if constant(whole) is not None and constant(whole) == constant(axis.extent):
            return view
        inside = axis.var < index(axis.extent)
        b = tirx.if_then_else(inside, view.b, tirx.const(0, "int32"))
        return replace(view, k_axes=(*outer, Axis(axis.var, whole)), b=b)


def tile_product(
    contraction: SumOfProducts, view: GemmView, is_packed: bool, device: Device
) -> TileProduct | None:
    """Choose an instruction of tiles for a product; ``None`` where none exists or pays.

    Parameters
    ----------
    is_packed
        Whether B is a packed constant. Panels that a task copies cannot hold K of several axes.
    """
    if len(view.k_axes) > 1 and not is_packed:
        return None
    a, b = (str(uncast(x).ty.dtype) for x in (view.a, view.b))
    row = find(device, "amx", a, b)
    if row is None or row.sums != contraction.dtype or not _is_zero(contraction.initial):
        return None
    axis = view.k_axes[-1]
    group = row.k // MOST_WORDS
    k = constant(axis.extent)
    work = constant(product([a.extent for a in (*view.m_axes, *view.n_axes, *view.k_axes)]))
    if (k is not None and k < group) or (work is not None and work < LEAST):
        return None
    words = MOST_WORDS if k is None else _even(-(-k // group))
    return TileProduct(row.n, a, b, axis, view.a, row, words)


def matrix_dtype(dot: WordProduct | None) -> str:
    """Name the type at whose rate a claim's products run; empty where vectors compute them."""
    return dot.row.kind if isinstance(dot, TileProduct) else ""


def vector_work(flops: int, dot: WordProduct | None) -> int:
    """Count operations of vectors among a claim's, most of which are products.

    An average prices a claim's operations; on tile registers it is far below that of vectors.
    """
    return flops * SPEEDUP if isinstance(dot, TileProduct) else flops


def _is_zero(initial: ir.Expr) -> bool:
    return isinstance(initial, tirx.FloatImm | tirx.IntImm) and float(initial.value) == 0


def _even(words: int) -> int:
    """Divide words of K among as few steps as there are, each of as many words."""
    return -(-words // -(-words // MOST_WORDS))
