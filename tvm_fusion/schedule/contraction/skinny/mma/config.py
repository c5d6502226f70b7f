"""Configuration of a skinny GEMM on tensor cores.

The operands are swapped: N is the m of an mma (16 columns of B), M its n (8 rows of A), so that an
instruction takes more weights than activations. Lanes of a warp are 8 groups of 4 threads; a group
owns ``tile_n`` columns of B, and its threads share each column's K.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import tvm_ffi
from tvm import DataType, ir, tirx

from .....core.tir.expressions import loads
from .....core.tir.loops import constant, index, product
from .....device import Device
from .....ecg.work import at
from .....program.stage import Axis
from ....gpu.memory.vector_loads import ElementLoads
from ....gpu.threads.warp import lane_of, warp_of
from ....instructions.instruction import Instruction
from ....instructions.table import find_half, newest
from ...dequantize.f16x2 import quantized_and_scales
from ...dequantize.float32 import FLOATS, has_integers
from ...problem.norm_scale import NormScale
from ...problem.sum_of_products import SumOfProducts
from ..gemv.config import GemvConfig
from ..gemv.default import gemv_config
from ..gemv.thread_tile import ThreadTile, thread_tile

# Fewer blocks leave multiprocessors of large devices idle: narrower tiles are chosen then. Where B
# is contiguous along N, narrower tiles read smaller parts of cache lines, too.
LEAST_BLOCKS, LEAST_BLOCKS_K_CONTIGUOUS = 128, 256
LEAST_BLOCKS_QUANTIZED = 512  # or the widest tiles, whose few blocks have more warps each
# As measured on an H200, of a multiprocessor: warps, each with many loads in registers, and blocks,
# in one wave. Dequantized weights need registers of their own.
WARPS, LEAST_WARPS = 16, 4
MAX_BLOCKS_PER_SM, MAX_BLOCKS_PER_SM_QUANTIZED = 7, 4
STAGES = 2  # of the register pipeline
ROW_BYTES = 32 * 1024  # of A in shared memory; a thread's tiles of more would not fit its registers
VECTORS, VECTORS_K_CONTIGUOUS = 8, 2  # in flight of a thread; of a tile of a half type along K
# Rows from which on tensor cores are faster on an H200, by how B is contiguous.
LEAST_ROWS, LEAST_ROWS_K_CONTIGUOUS = 2, 3


@dataclass(frozen=True)
class SkinnyMmaConfig(GemvConfig):
    """Configuration of a skinny GEMM whose warps multiply on tensor cores.

    ``threads_n`` is the number of groups of a warp, ``slices_k`` that of warps, ``stages`` the
    depth of the register pipeline.
    """

    @property
    def mma(self) -> Instruction:
        """What a warp multiplies with; its A are columns of B, its B are rows of A."""
        return newest("mma.sync", self.half, self.half)

    @property
    def threads(self) -> int:
        """Threads of a block: one warp for each slice of K."""
        return self.slices_k * self.mma.lanes

    @property
    def n8(self) -> int:
        """Fragments of 8 rows of A: the n of an mma."""
        return -(-self.m // self.mma.n)

    @property
    def is_quantized(self) -> bool:
        """Whether B has integers."""
        return has_integers(self.b)

    @property
    def half(self) -> str:
        """Type of the fragments."""
        return _half_of(self)

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread: of pairs of columns, and of two rows of each n8."""
        return self.n8 * self.parts * (self.tile_n // 2) * self.mma.c.per_lane

    @property
    def shared_row_bytes(self) -> int:
        """Shared memory of A in fragment order: of one row alone, unless it is too long."""
        size = int(self.k_tiles) * self.tile.k * DataType(self.half).itemsize
        return size if self.m == 1 and size <= ROW_BYTES else 0

    @property
    def shared_a_size(self) -> int:
        """Elements of A where partial sums lie later: none."""
        return 0

    @property
    def row_sums(self) -> int:
        """Sums over a normalized row in shared memory: one of each warp, of 8 bytes in all."""
        return 0 if self.norm_scale is None else -(-self.slices_k // 2) * 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return super().shared_bytes + self.shared_row_bytes

    @property
    def registers(self) -> int:
        """Registers of a thread: loads in flight take all that launch bounds allow."""
        return self._register_limit

    def lane_coords(self, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Tell a thread's warp, groupID and threadID_in_group."""
        lane, size = lane_of(thread), index(self.mma.c.lanes_per_row)
        return warp_of(thread), tirx.floordiv(lane, size), tirx.floormod(lane, size)

    def clamp_n(self, block: ir.Expr, n_tile: ir.Expr) -> ir.Expr:
        """Return a tile of a block, or the last one of N for those beyond it."""
        tiles = int(product([a.extent for a in self.n_axes])) // self.tile_n
        if tiles % self.threads_n == 0:
            return n_tile
        blocks = -(-tiles // self.threads_n)
        first = tirx.floormod(block, index(blocks)) * self.threads_n
        return tirx.min(n_tile, tiles - 1 - first)


def skinny_gemm_config(
    contraction: SumOfProducts, device: Device, norm_scale: NormScale | None = None
) -> GemvConfig | None:
    """Configure a skinny GEMM, on tensor cores where they are faster; ``None`` where it is none.

    Parameters
    ----------
    norm_scale
        See :attr:`GemvConfig.norm_scale`.
    """
    config = gemv_config(contraction, device, norm_scale)
    return config if config is None else _mma_config(config, device) or config


def _mma_config(config: GemvConfig, device: Device) -> SkinnyMmaConfig | None:
    """Configure a skinny GEMM for tensor cores; ``None`` where CUDA cores multiply it.

    Parameters
    ----------
    config
        Its configuration for CUDA cores.
    """
    half, dtype = _half_of(config), str(uncast(config.b).ty.dtype)
    if find_half(device, half) is None:
        return None
    mma = newest("mma.sync", half, half)
    groups, in_group = mma.c.lanes_per_column, mma.c.lanes_per_row
    if config.contraction.dtype != "float32":
        return None
    is_quantized = has_integers(config.b)
    k = constant(product([a.extent for a in config.k_axes]))
    if k is None or not (is_quantized or dtype == half):
        return None
    least_rows = LEAST_ROWS_K_CONTIGUOUS if config.tile.is_k_contiguous else LEAST_ROWS
    if not is_quantized and config.m < least_rows:
        return None
    if config.norm_scale is not None and not is_quantized:
        return None
    axes = (*config.contraction.stage.axes, *config.contraction.stage.reduce)

    def blocks(tile: ThreadTile) -> int:
        n = int(product([a.extent for a in config.n_axes]))
        return at(product([a.extent for a in config.batch])) * -(-n // (tile.n * groups))

    def tile_with(least: int, least_k_contiguous: int) -> ThreadTile | None:
        def accept(tile: ThreadTile) -> bool:
            if tile.n % 2 or tile.k % mma.k_per_lane or k % (tile.k * in_group):
                return False
            if blocks(tile) < (least_k_contiguous if tile.is_k_contiguous else least):
                return False
            if is_quantized:
                return _has_group_scales(tile, in_group, config.b, half, axes)
            return not tile.is_k_contiguous or tile.vectors <= VECTORS_K_CONTIGUOUS

        m = 2 * -(-config.m // mma.n)
        return thread_tile(
            config.b, config.n_axes, config.k_axes, axes, m, config.parts, "cuda", accept
        )

    along_k = LEAST_BLOCKS_QUANTIZED if is_quantized else LEAST_BLOCKS_K_CONTIGUOUS
    tile = tile_with(LEAST_BLOCKS, along_k) or tile_with(1, 1)
    if tile is None:
        return None
    most = MAX_BLOCKS_PER_SM_QUANTIZED if is_quantized else MAX_BLOCKS_PER_SM
    per_sm = min(most, -(-blocks(tile) // (device.sm_count or 1)))
    steps = k // (tile.k * in_group)
    wanted = max(WARPS // per_sm, LEAST_WARPS)
    warps = next(n for n in range(min(wanted, steps), 0, -1) if steps % n == 0)
    # Where B is contiguous along N, a step has fewer k: warps come to the next one sooner.
    stages = STAGES if tile.is_k_contiguous else 1
    stages = min(stages, steps // warps, max(1, VECTORS // (tile.vectors * config.parts)))
    given = {f.name: getattr(config, f.name) for f in fields(GemvConfig)}
    given |= {
        "tile": tile,
        "threads_n": groups,
        "slices_k": warps,
        "stages": stages,
        "cp_async_stages": 0,
        "min_blocks_per_sm": per_sm,
        "has_exchanges": False,
    }
    made = SkinnyMmaConfig(**given)
    if made.norm_scale is not None and not made.shared_row_bytes:
        return None
    return made if made.holds_heads(device.clusters) else None


def _half_of(config: GemvConfig) -> str:
    """Return the type in which A is multiplied; a normalized row is rounded to its own type."""
    if config.norm_scale is None:
        return str(uncast(config.a).ty.dtype)
    return str(loads(config.norm_scale.term)[0].ty.dtype)


def uncast(operand: ir.Expr) -> ir.Expr:
    """Take casts between floating point types off an operand."""
    while isinstance(operand, tirx.Cast) and str(operand.value.ty.dtype) in FLOATS:
        operand = operand.value
    return operand


def _has_group_scales(
    tile: ThreadTile, threads: int, b: ir.Expr, half: str, axes: Sequence[Axis]
) -> bool:
    """Whether weights are integers times scales that all k of a group's tiles share."""
    whole = replace(tile, k=tile.k * threads)
    elements = ElementLoads(whole.analyzer(axes))
    first, last = (
        quantized_and_scales(elements.read(whole.at(uncast(b), k, 0))) for k in (0, whole.k - 1)
    )
    if first is None or last is None or not (first[0].fits(half) and last[0].fits(half)):
        return False
    return len(first[1]) == len(last[1]) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(first[1], last[1], strict=True)
    )
