"""Configuration of a skinny GEMM on a GPU: few rows of A, each vector of B is read once.

C[m, n] = sum over k of A[m, k] * B[k, n]        M * parts <= MAX_ACCUMULATORS
grid    batch * ceil(N / block_n)
block   threads_n tiles of tile_n columns times slices_k slices of K
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import DataType, ir, tirx

from ...core.expressions import loads, variables
from ...core.loops import Body, ceildiv, constant, coordinates, index, product, threads, when
from ...device import Device
from ...ecg.work import at
from ...program.stage import Axis
from ..address import conditional_loads
from ..gpu.cp_async import BYTES as CP_ASYNC_BYTES
from .gemm_view import GemmView, view_of
from .norm_scale_gpu import NormScale
from .operands import SumOfProducts
from .thread_tile import ThreadTile, thread_tile

MAX_ACCUMULATORS = 16  # of a thread for each of its columns
# Where B is contiguous along N: tiles of a block, so that a warp reads cache lines of 128 bytes or
# half of one, and the least number of blocks that makes wide ones the faster (measured on an H200).
BLOCKS_OF_THREADS_N, LEAST_THREADS_N = {8: 128, 4: 96}, 2
THREADS_IN_FLIGHT = 1 << 18  # as many as a large device holds at once
LEAST_THREADS = 256
WARP = 32
UNROLL_ACCUMULATORS = 64  # with more than half as many, fewer tiles are loaded at once
OTHER_REGISTERS = 40  # of a thread, beside accumulators
REGISTER_FILE = 1 << 16  # registers of a multiprocessor
SHARED_BYTES = 32 * 1024
TWO_STEPS = 32  # slices of K from which on their partial sums are reduced in two steps
FOLDED_ROW_SUMS = 32  # partial sums of a normalized row that the epilogue adds up
NORM_BYTES = 8 * 1024
# Of the cp.async pipeline: with more stages or memory, fewer blocks fit a multiprocessor; grids of
# more threads have enough bytes in flight without.
CP_ASYNC_STAGES, CP_ASYNC_BLOCK_BYTES, CP_ASYNC_THREADS = 3, 48 * 1024, 3 << 16


@dataclass(frozen=True)
class GemvConfig(GemmView):
    """Configuration of a skinny GEMM; the axes of N are without that of a column split.

    Attributes
    ----------
    contraction : SumOfProducts
        The product.
    tile : ThreadTile
        The elements of B that a thread loads at a time.
    threads_n : int
        Tiles of a block along N.
    slices_k : int
        Threads that share the K of a column (slice-K).
    stages : int
        Tiles that a thread loads before it uses the first.
    norm_scale : NormScale or None
        The scale of an RMS norm prologue; the normalized rows are staged in shared memory.
    cp_async_stages : int
        Stages of the cp.async pipeline of B; 0 where B is loaded directly.
    min_blocks_per_sm : int
        Occupancy target of the launch bounds: fewer blocks of a multiprocessor have more registers
        each. 0 leaves it to the compiler.
    """

    contraction: SumOfProducts
    tile: ThreadTile
    threads_n: int
    slices_k: int
    stages: int
    norm_scale: NormScale | None = None
    cp_async_stages: int = 0
    min_blocks_per_sm: int = 0

    @property
    def tile_n(self) -> int:
        """Columns of a tile."""
        return self.tile.n

    @property
    def k_tiles(self) -> ir.Expr:
        """Tiles of a column."""
        return ceildiv(product([a.extent for a in self.k_axes]), self.tile.k)

    @property
    def m(self) -> int:
        """Number of rows."""
        return _static(self.m_axes)

    @property
    def parts(self) -> int:
        """Sums at one position: one for each part of a column split."""
        return len(self.contraction.totals)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.threads_n * self.slices_k

    def phase(self, body: Body) -> tirx.Stmt:
        """Run a phase in every thread of a block; a barrier follows where it is needed."""
        return threads("threadIdx.x", self.threads, body)

    @property
    def block_n(self) -> int:
        """Columns of a block."""
        return self.threads_n * self.tile_n

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of the grid."""
        columns = ceildiv(_static(self.n_axes), self.block_n)
        return product([*(a.extent for a in self.batch), columns])

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread, in the order ``[m, parts, tile_n]``."""
        return self.m * self.parts * self.tile_n

    def partials(self, rows: int) -> int:
        """Count the partial sums of a slice of K of some rows, ``[rows, parts, block_n]``."""
        return rows * self.parts * self.block_n

    @property
    def shared_a_size(self) -> int:
        """Elements of A in shared memory: all of it behind a norm prologue, otherwise none."""
        k = constant(product([a.extent for a in self.k_axes]))
        return 0 if self.norm_scale is None or k is None else self.m * k

    @property
    def rows_per_pass(self) -> int:
        """Rows whose partial sums are reduced across slices at once, in shared memory."""
        size = DataType(self.contraction.dtype).itemsize * self.slices_k * self.partials(1)
        return max(1, SHARED_BYTES // size)

    @property
    def partials_shape(self) -> tuple[int, int]:
        """Shared memory of partial sums, ``[slices, rows * parts * block_n]``.

        Normalized rows of A lie in the same memory before.
        """
        width = self.partials(min(self.rows_per_pass, self.m))
        return max(self.slices_k, -(-self.shared_a_size // width)), width

    @property
    def folded_slices(self) -> int:
        """Slices after the first of two steps of the reduction; all of them for one step."""
        is_folded = self.slices_k >= TWO_STEPS
        return 1 << self.slices_k.bit_length() // 2 if is_folded else self.slices_k

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        slices, width = self.partials_shape
        elements = slices * width
        if self.folded_slices < self.slices_k:
            elements += self.folded_slices * width
        if self.norm_scale is not None:
            elements += self.m * (self.threads + FOLDED_ROW_SUMS)
        stage = self.threads * self.parts * self.tile.vectors * CP_ASYNC_BYTES
        size = DataType(self.contraction.dtype).itemsize
        return elements * size + self.cp_async_stages * stage

    @property
    def registers(self) -> int:
        """Registers of a thread, within 25 % of ptxas: see test_claimed_resources.

        Launch bounds limit them. The compiler sinks half of the loads to their uses.
        """
        b_bytes = self.parts * self.tile.vectors * self.tile.vector_size * _itemsize(self.b)
        a_bytes = self.m * self.tile.k * _itemsize(self.a)
        slots = 1 if self.cp_async_stages else self.stages
        wanted = 14 + self.accumulators + slots * (a_bytes + b_bytes) // 8
        return max(32, min(wanted, self._register_limit))

    @property
    def _register_limit(self) -> int:
        threads = self.threads * max(1, self.min_blocks_per_sm)
        return min(255, REGISTER_FILE // threads // 8 * 8)

    def thread_coords(self, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Tell a thread's slice of K and tile of N; adjacent threads read contiguous vectors."""
        if self.tile.is_k_contiguous:
            slices = index(self.slices_k)
            return tirx.floormod(thread, slices), tirx.floordiv(thread, slices)
        tiles = index(self.threads_n)
        return tirx.floordiv(thread, tiles), tirx.floormod(thread, tiles)

    def axes_at(
        self, block: ir.Expr, row: ir.Expr | int, part: ir.Expr | int, n_tile: ir.Expr
    ) -> dict[ir.Var, ir.Expr]:
        """Give the value of each axis at a tile of a block; the last of N counts in tiles."""
        blocks = ceildiv(_static(self.n_axes), self.block_n)
        batch = coordinates(tirx.floordiv(block, blocks), [a.extent for a in self.batch])
        extents = [a.extent for a in self.n_axes]
        extents[-1] = index(int(extents[-1]) // self.tile_n)
        n = coordinates(tirx.floormod(block, blocks) * self.threads_n + n_tile, extents)
        m = coordinates(index(row), [a.extent for a in self.m_axes])
        axes = (*self.batch, *self.m_axes, *self.n_axes)
        found = {a.var: index(0) for a in self.contraction.stage.axes}
        found |= {a.var: p for a, p in zip(axes, (*batch, *m, *n), strict=True)}
        if self.contraction.column_split is not None:
            found[self.contraction.column_split.part.var] = index(part)
        return found | {self.tile.n_tile: n[-1]}

    def output_index(
        self, block: ir.Expr, row: ir.Expr | int, n_tile: ir.Expr, lane: ir.Expr
    ) -> list[ir.Expr]:
        """Give the place of an element of C over the stage's axes; of several parts the first."""
        place = self.axes_at(block, row, 0, n_tile)
        last = self.n_axes[-1].var
        place[last] = place[last] * self.tile_n + lane
        return [place[a.var] for a in self.contraction.stage.axes]

    @property
    def divides_n(self) -> bool:
        """Whether N is a multiple of ``block_n``."""
        return _static(self.n_axes) % self.block_n == 0

    def guard_n(self, block: ir.Expr, n_tile: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Mask the tiles of the last block that lie beyond N."""
        if self.divides_n:
            return body
        tiles = _static(self.n_axes) // self.tile_n
        blocks = -(-tiles // self.threads_n)
        return when(tirx.floormod(block, index(blocks)) * self.threads_n + n_tile < tiles, body)


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
    a, b, m_axes, n_axes = view.a, view.b, view.m_axes, view.n_axes
    if any(constant(x.extent) is None for x in (*m_axes, *n_axes)):
        return None
    m, parts = _static(m_axes), len(contraction.totals)
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
    n_tiles = _static(n_axes) // tile.n
    choose = _k_contiguous_threads if tile.is_k_contiguous else _n_contiguous_threads
    threads_n, slices_k = choose(n_tiles, k_tiles, most)
    vectors = 8 if accumulators <= UNROLL_ACCUMULATORS // 2 else 4
    stages = min(max(1, vectors // tile.vectors), -(-k_tiles // slices_k))
    problem = (view.batch, m_axes, n_axes, k_axes, a, b, contraction)
    cut = GemvConfig(*problem, tile, threads_n, slices_k, stages, norm_scale)
    if not _fits_shared(cut):
        return None
    return replace(cut, cp_async_stages=_cp_async_stages(cut, device))


def _fits_shared(cut: GemvConfig) -> bool:
    """Whether normalized rows and the partial sums over them fit shared memory."""
    size = DataType(cut.contraction.dtype).itemsize
    partials = 0 if cut.norm_scale is None else cut.m * cut.threads
    return cut.shared_a_size * size <= SHARED_BYTES and partials * size <= NORM_BYTES


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
    whole_warps = -(-slices // WARP) * WARP
    slices = whole_warps if slices > WARP and whole_warps <= most else slices
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


def _cp_async_stages(cut: GemvConfig, device: Device) -> int:
    """Choose the stages of the cp.async pipeline: for one row, of a B that is loaded as it is."""
    steps, blocks = constant(ceildiv(cut.k_tiles, cut.slices_k)), constant(cut.blocks)
    if not device.async_copy or steps is None or blocks is None or cut.m > 1:
        return 0
    b = cut.b
    while isinstance(b, tirx.Cast):
        b = b.value
    size = DataType(str(b.ty.dtype)).itemsize * cut.tile.vector_size
    if not isinstance(b, ir.TensorLoad) or size != CP_ASYNC_BYTES:
        return 0
    shared = CP_ASYNC_STAGES * cut.threads * cut.parts * cut.tile.vectors * CP_ASYNC_BYTES
    fits = shared <= CP_ASYNC_BLOCK_BYTES and blocks * cut.threads <= CP_ASYNC_THREADS
    return CP_ASYNC_STAGES if fits and steps >= CP_ASYNC_STAGES else 0


def _itemsize(operand: ir.Expr) -> int:
    """Bytes of the widest element that an operand reads."""
    kinds = [DataType(str(x.ty.dtype)) for x in loads(operand)]
    return max(kind.itemsize for kind in kinds)


def _static(axes: Sequence[Axis]) -> int:
    return int(product([a.extent for a in axes]))
