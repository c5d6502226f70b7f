"""Choice of a skinny GEMM's configuration for CUDA cores."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import DataType, ir, tirx

from ....._tvm.ir.structural import structural_map
from .....core.tir.expressions import loads, variables
from .....core.tir.loops import ceildiv, constant, index, product
from .....device import Device
from .....ecg.work import at
from ....gpu.memory.cp_async import BYTES as CP_ASYNC_BYTES
from ....gpu.threads.warp import LANES
from ....index.address import conditional_loads
from ....instructions.instruction import Instruction
from ....instructions.table import find_dot
from ...problem.gemm_view import static_extent, view_of
from ...problem.norm_scale import NormScale
from ...problem.sum_of_products import SumOfProducts
from .config import REGISTER_FILE, SHARED_BYTES, GemvConfig
from .model import gemv_clocks, has_model
from .thread_tile import ThreadTile, fewer_columns, thread_tile

MAX_ACCUMULATORS = 16  # of a thread for each of its columns
# Where B is contiguous along N: tiles of a block, so that a warp reads cache lines of 128 bytes or
# half of one, and the least number of blocks that makes wide ones the faster (measured on an H200).
BLOCKS_OF_THREADS_N, LEAST_THREADS_N = {8: 128, 4: 96}, 2
THREADS_IN_FLIGHT = 1 << 18  # as many as a large device holds at once
LEAST_THREADS = 256
UNROLL_ACCUMULATORS = 64  # with more than half as many, fewer tiles are loaded at once
OTHER_REGISTERS = 40  # of a thread, besides accumulators
NORM_BYTES = 8 * 1024
# Of the cp.async pipeline: with more stages or memory, fewer blocks fit a multiprocessor; grids of
# more threads have enough bytes in flight without.
CP_ASYNC_STAGES, CP_ASYNC_BLOCK_BYTES, CP_ASYNC_THREADS = 3, 48 * 1024, 3 << 16
# Where B is contiguous along K: slices of a column and threads of a block; vectors that a thread
# loads at a time, and before it uses the first; how much the model of times is off by.
SLICES_ALONG_K, THREADS_ALONG_K = (32, 64, 128, 256, 512), 256
MOST_VECTORS, IN_FLIGHT_ALONG_K, OFF = 4, 8, 1.05


def gemv_config(
    contraction: SumOfProducts, device: Device, norm_scale: NormScale | None = None
) -> GemvConfig | None:
    """Configure a skinny GEMM for CUDA cores; ``None`` where M is large or B has no vectors."""
    stage = contraction.stage
    split = contraction.column_split
    part = None if split is None else split.part
    axes = [a for a in stage.axes if constant(a.extent) != 1 and a is not part]
    k_axes = tuple(a for a in stage.reduce if constant(a.extent) != 1)
    if not axes or not k_axes:
        return None
    view = view_of(axes, k_axes, (contraction.left, contraction.right))
    if view is None:
        return None
    a, m_axes, n_axes = view.a, view.m_axes, view.n_axes
    b, gathered = _gathered(view.b, {n_axes[-1].var, *(x.var for x in k_axes)})
    if any(constant(x.extent) is None for x in (*m_axes, *n_axes)):
        return None
    m, parts = static_extent(m_axes), len(contraction.totals)
    if m * parts > MAX_ACCUMULATORS or (part is not None and part.var in variables(a)):
        return None
    if conditional_loads(a) or any(loads(i) for x in loads(a) for i in x.indices):
        return None
    if not _is_widened(contraction.dtype, (a, b)):
        return None
    tile = thread_tile(b, n_axes, k_axes, (*stage.axes, *stage.reduce), m, parts, device.kind)
    if tile is None:
        return None
    accumulators = m * parts * tile.n
    most = device.max_threads_per_block or 1024
    most = min(most, _shared_limit(contraction, tile), _file_limit(accumulators))
    k_tiles = max(1, at(product([x.extent for x in k_axes])) // tile.k)
    n_tiles = static_extent(n_axes) // tile.n
    choose = _k_contiguous_threads if tile.is_k_contiguous else _n_contiguous_threads
    threads_n, slices_k = choose(n_tiles, k_tiles, most)
    vectors = 8 if accumulators <= UNROLL_ACCUMULATORS // 2 else 4
    stages = min(max(1, vectors // tile.vectors), -(-k_tiles // slices_k))
    problem = (view.batch, m_axes, n_axes, k_axes, a, b, contraction)
    numbers = (tile, threads_n, slices_k, stages, norm_scale)
    is_cuda = device.kind == "cuda"
    config = GemvConfig(*problem, *numbers, has_exchanges=is_cuda, gathered=gathered)
    if not _fits_shared(config):
        return None
    if tile.is_k_contiguous and has_model(config):
        return _of_least_time(config, device)
    if not config.holds_heads(device.clusters):
        return None
    return replace(
        config, cp_async_stages=_cp_async_stages(config, device), dot=_dot(config, device)
    )


def _gathered(
    b: ir.Expr, moving: Collection[ir.Var]
) -> tuple[ir.Expr, tuple[tuple[ir.Var, ir.Expr], ...]]:
    """Put variables in the places of B's indices that are loaded and the same in all of a tile.

    Parameters
    ----------
    moving
        Axes along which tiles lie.
    """
    found: list[tuple[ir.Var, ir.Expr]] = []

    def stand_in(place: ir.Expr) -> ir.Expr:
        if not loads(place) or variables(place) & {*moving}:
            return place
        known = next((v for v, e in found if tvm_ffi.structural_equal(e, place)), None)
        if known is None:
            known = tirx.Var("gathered", str(place.ty.dtype))
            found.append((known, place))
        return known

    def swap(read: ir.TensorLoad) -> ir.Expr:
        return tirx.BufferLoad(read.source, [stand_in(index(i)) for i in read.indices])

    return structural_map(b, (ir.TensorLoad, swap), order="pre"), tuple(found)


def _of_least_time(start: GemvConfig, device: Device) -> GemvConfig | None:
    """Choose columns, slices and loads of a B along K by the model; ``None`` if none has heads.

    Of those within what the model is off by, the one whose threads load the most columns for an
    element of A, then the one whose sums fewest warps share.
    """
    steps, found = int(start.k_tiles), list[tuple[float, GemvConfig]]()
    for tile, slices_k in itertools.product(fewer_columns(start.tile), SLICES_ALONG_K):
        vectors = tile.vectors * start.parts
        if slices_k > max(steps, LANES) or (vectors > MOST_VECTORS and tile.vectors > 1):
            continue
        threads_n = max(1, THREADS_ALONG_K // slices_k)
        stages = max(1, min(IN_FLIGHT_ALONG_K // vectors, steps // slices_k))
        shape = replace(start, tile=tile, threads_n=threads_n, slices_k=slices_k, stages=stages)
        if shape.holds_heads(device.clusters) and shape.threads <= (
            device.max_threads_per_block or 1024
        ):
            found.append((gemv_clocks(shape, device), shape))
    if not found:
        return None
    least = min(clocks for clocks, _ in found)
    alike = [shape for clocks, shape in found if clocks <= least * OFF]
    return max(alike, key=lambda shape: (shape.tile_n, -shape.slices_k))


def _dot(config: GemvConfig, device: Device) -> Instruction | None:
    """Choose a dot product for operands that are loaded as they are, in words along K."""
    types = []
    for operand in (config.a, config.b):
        while isinstance(operand, tirx.Cast):
            operand = operand.value
        if not isinstance(operand, ir.TensorLoad):
            return None
        types.append(str(operand.ty.dtype))
    row = find_dot(device, *types)
    fits = row is not None and row.sums == config.contraction.dtype
    is_plain = config.tile.is_k_contiguous and config.norm_scale is None
    return row if row is not None and fits and is_plain and not config.tile.k % row.k else None


def _fits_shared(config: GemvConfig) -> bool:
    """Whether normalized rows and the partial sums over them fit shared memory."""
    size = DataType(config.contraction.dtype).itemsize
    partials = 0 if config.norm_scale is None else config.m * config.threads
    return config.shared_a_size * size <= SHARED_BYTES and partials * size <= NORM_BYTES


def _n_contiguous_threads(n_tiles: int, k_tiles: int, most: int) -> tuple[int, int]:
    """Choose threads_n and slices_k where a cache line has several columns."""
    wide = (n for n, blocks in BLOCKS_OF_THREADS_N.items() if n_tiles // n >= blocks)
    threads_n = next(wide, LEAST_THREADS_N)
    wanted = min(max(THREADS_IN_FLIGHT // max(1, n_tiles // threads_n), LEAST_THREADS), most)
    return threads_n, 1 << min(wanted // threads_n, k_tiles).bit_length() - 1


def _k_contiguous_threads(n_tiles: int, k_tiles: int, most: int) -> tuple[int, int]:
    """Choose threads_n and slices_k where a cache line is of one column."""
    wanted = min(max(THREADS_IN_FLIGHT // n_tiles, LEAST_THREADS), most)
    slices = -(-k_tiles // -(-k_tiles // wanted))
    whole_warps = -(-slices // LANES) * LANES
    slices = whole_warps if slices > LANES and whole_warps <= most else slices
    threads_n = 1
    while threads_n * slices * 2 <= min(LEAST_THREADS, most) and threads_n * 2 <= n_tiles:
        threads_n *= 2
    return threads_n, slices


def _is_widened(dtype: str, operands: Sequence[ir.Expr]) -> bool:
    """Whether operands keep their values when they are cast to the accumulators' type."""
    return all(DataType(str(x.ty.dtype)).bits <= DataType(dtype).bits for x in operands)


def _shared_limit(contraction: SumOfProducts, tile: ThreadTile) -> int:
    """Count the threads whose partial sums of one row fit shared memory."""
    size = DataType(contraction.dtype).itemsize * tile.n * len(contraction.totals)
    return SHARED_BYTES // size


def _file_limit(accumulators: int) -> int:
    """Count the threads of a block that the register file holds without spilling."""
    return 1 << (REGISTER_FILE // (accumulators + OTHER_REGISTERS)).bit_length() - 1


def _cp_async_stages(config: GemvConfig, device: Device) -> int:
    """Choose the stages of the cp.async pipeline: for one row, of a B that is loaded as it is."""
    steps, blocks = constant(ceildiv(config.k_tiles, config.slices_k)), constant(config.blocks)
    if not device.async_copy or steps is None or blocks is None or config.m > 1:
        return 0
    b = config.b
    while isinstance(b, tirx.Cast):
        b = b.value
    size = DataType(str(b.ty.dtype)).itemsize * config.tile.vector_size
    if not isinstance(b, ir.TensorLoad) or size != CP_ASYNC_BYTES:
        return 0
    shared = CP_ASYNC_STAGES * config.threads * config.parts * config.tile.vectors * CP_ASYNC_BYTES
    fits = shared <= CP_ASYNC_BLOCK_BYTES and blocks * config.threads <= CP_ASYNC_THREADS
    return CP_ASYNC_STAGES if fits and steps >= CP_ASYNC_STAGES else 0
