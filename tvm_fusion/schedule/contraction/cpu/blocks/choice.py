"""Choice of the product with weights in blocks, and of its sizes."""

import math
from dataclasses import replace

from tvm import ir, tirx

from .....core.tir.loops import constant, product
from .....device import Device
from .....ecg.work import at
from .....program.stage import Axis
from ....cpu.register_tile import VectorUnit
from ....index.address import known_step
from ....instructions.table import find, find_of_bytes
from ....instructions.tiles import TILE_ROWS
from ...problem.block_quantized import BlockQuantized, block_quantized
from ...problem.gemm_view import GemmView
from ..blocking import MAX_MR, MC, TASKS, Blocking, Machine
from .bytes import ByteBlocks
from .floats import FloatBlocks
from .product import BlockProduct
from .tile_operands import is_signed
from .tiles import TileBlocks, is_exact_in_bfloat16

_GROUP = 4  # terms of a word of bytes
MOST_TERMS = 256  # of a block
UNPACK = 3  # operations that unpack a number
GRAIN = 1 << 18  # multiplications of float32 that are worth a task


def block_product(view: GemmView, dtype: str, device: Device) -> BlockProduct | None:
    """Choose how a GEMM with weights in blocks is multiplied; ``None`` where B has none.

    Parameters
    ----------
    view
        Over single terms.
    """
    if len(view.k_axes) != 1 or dtype != "float32":
        return None
    axis = view.k_axes[0]
    weights = block_quantized(view.b, axis)
    if weights is None:
        return None
    unit = VectorUnit.of(device)
    size = _divisor(weights.size, 32 // weights.bits)
    if size is None:
        return None
    found: BlockProduct = FloatBlocks(unit.lanes, size, axis, weights)
    a = block_quantized(view.a, axis)
    row = find_of_bytes(device, (weights.high - weights.low).bit_length())
    if a is None or row is None or not _is_plain(view, a, axis):
        return found
    k = constant(axis.extent) or 1
    shared = _divisor(math.gcd(a.size, weights.size), _GROUP * 8 // weights.bits)
    if shared is None or k % shared:
        return found
    is_signed = weights.high - weights.low > 127 and "uint8" not in row.a_types
    weights = replace(weights, is_signed=is_signed)
    return ByteBlocks(row.n, shared, axis, weights, a, row)


def tile_blocks(blocks: BlockProduct, device: Device) -> TileBlocks | None:
    """Choose the same product on tile registers; ``None`` where they cannot compute it.

    Parameters
    ----------
    blocks
        In vectors.
    """
    weights, k = blocks.weights, constant(blocks.axis.extent) or 1
    if blocks.lanes != TILE_ROWS or k % blocks.size:
        return None
    given = blocks.lanes, blocks.size, blocks.axis, weights
    if isinstance(blocks, ByteBlocks):
        row = find(device, "amx", "int8", "int8" if is_signed(weights) else "uint8")
        steps = _GROUP * TILE_ROWS
        is_whole = blocks.size % steps == 0 or blocks.size < steps
        return TileBlocks(*given, row, blocks) if row is not None and is_whole else None
    row = find(device, "amx", "bfloat16", "bfloat16")
    if row is None or blocks.size % (2 * TILE_ROWS) or not is_exact_in_bfloat16(weights):
        return None
    return TileBlocks(*given, row, None)


def _is_plain(view: GemmView, a: BlockQuantized, axis: Axis) -> bool:
    """Whether A's numbers are int8, adjacent in memory, without a zero point."""
    numbers = a.numbers
    if not isinstance(numbers, ir.TensorLoad) or str(numbers.ty.dtype) != "int8":
        return False
    axes = [x.var for x in (*view.batch, *view.m_axes, axis)]
    step = known_step(numbers.source, numbers.indices, axis.var, axes)
    zero = a.zero.value
    return (
        step == 1 and not a.minimum and isinstance(zero, tirx.FloatImm) and float(zero.value) == 0
    )


def _divisor(size: int, least: int) -> int | None:
    """Return the terms of a block: whole words, and not too many."""
    while size > MOST_TERMS and size % 2 == 0:
        size //= 2
    return size if size % least == 0 and size <= MOST_TERMS else None


def block_flops(view: GemmView, blocks: BlockProduct, sizes: Blocking) -> int:
    """Count operations of vectors: products, and numbers that each tile of rows unpacks again."""
    rows, columns = (
        math.prod(at(a.extent) for a in axes) for axes in (view.m_axes, (*view.batch, *view.n_axes))
    )
    k = at(blocks.axis.extent)
    products = 2 * rows // blocks.speed + UNPACK * math.ceil(rows / sizes.mr)
    return products * columns * k


def block_blocking(
    view: GemmView, blocks: BlockProduct, machine: Machine, vectors: int, most: int
) -> Blocking:
    """Choose sizes: tiles of one vector, or of one for each part of a column split.

    Parameters
    ----------
    most
        Rows of a tile.
    """
    m = constant(product([a.extent for a in view.m_axes]))
    n, k = (constant(a.extent) or 1 for a in (view.n_axes[-1], blocks.axis))
    batch = constant(product([a.extent for a in (*view.batch, *view.n_axes[:-1])])) or 1
    rows, mr = m or MC, most
    if not isinstance(blocks, TileBlocks):
        mr = min(most, MAX_MR)
        if m is not None:  # as many tiles, but of even height
            mr = math.ceil(m / math.ceil(m / mr))
    nr = vectors * blocks.lanes
    panels = math.ceil(n / nr)
    # Rows in half of the cache.
    near = max(mr, machine.l2_bytes // (2 * blocks.term_bytes * k) // mr * mr)
    block_m = min(math.ceil(rows / mr) * mr, near)
    work = rows * n * k * batch // (GRAIN * blocks.speed)
    wanted = min(TASKS * machine.cores, max(1, work))
    chunk = max(1, panels * batch * math.ceil(rows / block_m) // wanted)
    return Blocking(mr, nr, block_m, block_m, min(panels, chunk), math.ceil(k / blocks.size))
