"""Products of few rows for tensor cores: which of them, and how they are cut.

Of what a warp multiplies at once, the sixteen rows are columns of the product, so that it takes
more of the large factor than of the small one, and the eight columns are the product's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from ...device import Device, parse
from ...ecg.work import at
from ...fusion.program import Axis
from ..gpu.launch import has_tensor_cores
from ..gpu.mma import CHUNK, LINES, SHARERS, SUMS
from ..gpu.vector_loads import Elements
from ..loops import constant, index, product
from .dequantize import FLOATS, has_integers
from .dequantize_f16x2 import FRACTION, scaled_number
from .gemv_config import Slim
from .thread_tile import Tile, tile_of

# Below which multiprocessors of large devices are idle; narrower tiles help then. Across the terms,
# they are narrower parts of cache lines, too.
BLOCKS, BLOCKS_ALONG = 128, 256
# As measured on an H200. Of a multiprocessor: warps, each with many registers for what it has asked
# for, and blocks, in one wave. Numbers of integers need registers of their own.
WARPS, LEAST_WARPS = 16, 4
RESIDENT, RESIDENT_QUANTISED = 7, 4
AHEAD = 2  # steps of a warp in registers
VECTORS, VECTORS_ALONG = 8, 2  # that a thread asks for at once; a tile of a half type along terms
# Rows from which on an H200 is faster with tensor cores than without, by where vectors lie.
LEAST_ROWS, LEAST_ROWS_ALONG = 2, 3


@dataclass(frozen=True)
class FragmentSlim(Slim):
    """A product of few rows whose warps multiply on tensor cores.

    Tiles side by side are a warp's lines; four threads of a line share each of its columns.

    Attributes
    ----------
    resident : int
        Blocks that a multiprocessor is to hold at once; the fewer, the more registers each has.
    """

    resident: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block: its slices are warps."""
        return self.slices * LINES * SHARERS

    @property
    def eights(self) -> int:
        """Rows that one instruction takes, counted in its columns: one or two times eight."""
        return -(-self.count // LINES)

    @property
    def is_quantised(self) -> bool:
        """Whether the large factor has integers."""
        return has_integers(self.large)

    @property
    def half(self) -> str:
        """Type of what is multiplied."""
        return str(bare(self.small).ty.dtype)

    @property
    def kept(self) -> int:
        """Sums of a thread: of its columns, and of two rows or twice two."""
        return self.eights * self.pieces * (self.width // 2) * SUMS

    def lane(self, number: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Tell a thread's warp, line, and which of those that share it it is."""
        lanes = LINES * SHARERS
        lane = tirx.floormod(number, index(lanes))
        sharers = index(SHARERS)
        line, sharer = tirx.floordiv(lane, sharers), tirx.floormod(lane, sharers)
        return tirx.floordiv(number, index(lanes)), line, sharer

    def nearest(self, number: ir.Expr, vector: ir.Expr) -> ir.Expr:
        """Give a tile of a block, or the last that the columns have instead of those behind it."""
        vectors = int(product([a.extent for a in self.columns])) // self.width
        if vectors % self.lanes == 0:
            return vector
        blocks = -(-vectors // self.lanes)
        first = tirx.floormod(number, index(blocks)) * self.lanes
        return tirx.min(vector, vectors - 1 - first)


def fragment_slim(cut: Slim, target: Target | Device) -> FragmentSlim | None:
    """Cut a product of few rows for tensor cores; ``None`` where they do not multiply it.

    Parameters
    ----------
    cut : Slim
        The same product as threads multiply it on their own.
    target : Target or Device
        A GPU.
    """
    half, dtype = str(bare(cut.small).ty.dtype), str(bare(cut.large).ty.dtype)
    if cut.row_sum is not None or not has_tensor_cores(target) or half not in FRACTION:
        return None
    if cut.contraction.dtype != "float32":
        return None
    is_quantised = has_integers(cut.large)
    terms = constant(product([a.extent for a in cut.reduce]))
    if terms is None or not (is_quantised or dtype == half):
        return None
    if not is_quantised and cut.count < (LEAST_ROWS_ALONG if cut.tile.is_along else LEAST_ROWS):
        return None
    axes = (*cut.contraction.stage.axes, *cut.contraction.stage.reduce)
    sums = 2 * -(-cut.count // LINES)

    def blocks(tile: Tile) -> int:
        columns = int(product([a.extent for a in cut.columns]))
        return at(product([a.extent for a in cut.batch])) * -(-columns // (tile.width * LINES))

    def tile_of_blocks(least: int, least_along: int) -> Tile | None:
        def accept(tile: Tile) -> bool:
            if tile.width % 2 or tile.terms % CHUNK or terms % (tile.terms * SHARERS):
                return False
            if blocks(tile) < (least_along if tile.is_along else least):
                return False
            if is_quantised:
                return _is_of_groups(tile, cut.large, half, axes)
            return not tile.is_along or tile.vectors <= VECTORS_ALONG

        return tile_of(cut.large, cut.columns, cut.reduce, axes, sums, cut.pieces, "cuda", accept)

    tile = tile_of_blocks(BLOCKS, BLOCKS_ALONG) or tile_of_blocks(1, 1)
    if tile is None:
        return None
    device = target if isinstance(target, Device) else parse(target).device
    most = RESIDENT_QUANTISED if is_quantised else RESIDENT
    resident = min(most, -(-blocks(tile) // (device.sm_count or 1)))
    steps = terms // (tile.terms * SHARERS)
    wanted = max(WARPS // resident, LEAST_WARPS)
    warps = next(n for n in range(min(wanted, steps), 0, -1) if steps % n == 0)
    # A step across has fewer terms than one along: warps come to the next one sooner.
    ahead = AHEAD if tile.is_along else 1
    ahead = min(ahead, steps // warps, max(1, VECTORS // (tile.vectors * cut.pieces)))
    given = {f.name: getattr(cut, f.name) for f in fields(Slim)}
    given |= {"tile": tile, "lanes": LINES, "slices": warps, "ahead": ahead}
    return FragmentSlim(**given, resident=resident)


def bare(factor: ir.Expr) -> ir.Expr:
    """Take a factor's casts between floating point types away."""
    while isinstance(factor, tirx.Cast) and str(factor.value.ty.dtype) in FLOATS:
        factor = factor.value
    return factor


def _is_of_groups(tile: Tile, large: ir.Expr, half: str, axes: Sequence[Axis]) -> bool:
    """Whether weights are numbers times what all terms of a line's tiles share."""
    line = replace(tile, terms=tile.terms * SHARERS)
    elements = Elements(line.analyzer(axes))
    first, last = (
        scaled_number(elements.read(line.at(bare(large), i, 0))) for i in (0, line.terms - 1)
    )
    if first is None or last is None or not (first[0].fits(half) and last[0].fits(half)):
        return False
    return len(first[1]) == len(last[1]) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(first[1], last[1], strict=True)
    )
