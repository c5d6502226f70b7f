"""Configuration of a skinny GEMM on a GPU: few rows of A, each vector of B is read once.

C[m, n] = sum over k of A[m, k] * B[k, n]        M * parts <= default.MAX_ACCUMULATORS
grid    batch * ceil(N / block_n)
block   threads_n tiles of tile_n columns times slices_k slices of K
"""

from dataclasses import dataclass

from tvm import DataType, ir, tirx

from .....core.tir.expressions import loads
from .....core.tir.loops import (
    Body,
    ceildiv,
    constant,
    coordinates,
    index,
    product,
    substitute,
    threads,
    when,
)
from ....gpu.memory.cp_async import BYTES as CP_ASYNC_BYTES
from ....gpu.threads.warp import LANES
from ....instructions.instruction import Instruction
from ...problem.gemm_view import GemmView, static_extent
from ...problem.norm_scale import NormScale
from ...problem.sum_of_products import SumOfProducts
from .thread_tile import ThreadTile

REGISTER_FILE = 1 << 16  # registers of a multiprocessor
SHARED_BYTES = 32 * 1024
TWO_STEPS = 32  # partial sums of a column from which on they are reduced in two steps
EXCHANGED = 16  # accumulators of a thread that a warp adds up by exchanges, at most
MAX_CLUSTER = 8  # blocks that every device with clusters can launch together
FOLDED_ROW_SUMS = 32  # partial sums of a normalized row that the epilogue adds up, at most


@dataclass(frozen=True)
class GemvConfig(GemmView):
    """Configuration of a skinny GEMM; the axes of N are without that of a column split."""

    contraction: SumOfProducts
    tile: ThreadTile  # the elements of B that a thread loads at a time
    threads_n: int  # tiles of a block along N
    slices_k: int  # threads that share the K of a column (slice-K)
    stages: int  # tiles that a thread loads before it uses the first
    # The scale of an RMS norm prologue; the normalized rows are staged in shared memory.
    norm_scale: NormScale | None = None
    cp_async_stages: int = 0  # stages of the cp.async pipeline of B; 0 where B is loaded directly
    # The dot product that multiplies words along K, of AMD; None multiplies one by one.
    dot: Instruction | None = None
    # Occupancy target of the launch bounds: fewer blocks of a multiprocessor have more registers
    # each. 0 leaves it to the compiler.
    min_blocks_per_sm: int = 0
    # Whether lanes add up their slices by warp shuffles, as NVIDIA's do.
    has_exchanges: bool = False
    # Indices of B that are read from memory, such as the expert of a row, and what stands for them.
    gathered: tuple[tuple[ir.Var, ir.Expr], ...] = ()

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
        return static_extent(self.m_axes)

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
        columns = ceildiv(static_extent(self.n_axes), self.block_n)
        return product([*(a.extent for a in self.batch), columns])

    @property
    def head_n(self) -> int:
        """Columns of a part in a head, over which the epilogue sums; 0 where it does not."""
        head_sum = self.contraction.head_sum
        return 0 if head_sum is None else head_sum.width // self.parts

    @property
    def cluster(self) -> int:
        """Blocks that share a head, and are a cluster if they are several."""
        return max(1, self.head_n // self.block_n)

    @property
    def heads(self) -> int:
        """Heads of a block, those that it shares included."""
        return -(-self.block_n // self.head_n) if self.head_n else 0

    def holds_heads(self, has_clusters: bool) -> bool:
        """Whether blocks, or clusters of them, have whole heads."""
        if not self.head_n:
            return True
        split = self.contraction.column_split
        ends = [self.contraction.stage.axes[-1]] if split is None else [split.position]
        if split is not None and split.period is not None:
            ends.insert(0, split.period)
        if [*self.n_axes][-len(ends) :] != ends or not self.divides_n:
            return False
        if self.block_n % self.head_n == 0:
            return True
        is_part = has_clusters and self.head_n % self.block_n == 0
        return is_part and self.cluster <= MAX_CLUSTER

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread, in the order ``[m, parts, tile_n]``."""
        return self.m * self.parts * self.tile_n

    @property
    def exchanged_lanes(self) -> int:
        """Lanes of a warp that add up their slices of a column before shared memory; 1 if none."""
        is_of_warps = self.tile.is_k_contiguous and self.slices_k % LANES == 0
        fits = self.accumulators <= EXCHANGED
        return LANES if self.has_exchanges and is_of_warps and fits else 1

    @property
    def shared_slices(self) -> int:
        """Partial sums of a column in shared memory: of a slice, or of a warp's slices."""
        return self.slices_k // self.exchanged_lanes

    def partials(self, rows: int) -> int:
        """Count the partial sums of a slice of K of some rows, ``[rows, parts, block_n]``."""
        return rows * self.parts * self.block_n

    @property
    def shared_a_size(self) -> int:
        """Elements of A in shared memory: all of it behind a norm prologue, otherwise none."""
        k = constant(product([a.extent for a in self.k_axes]))
        return 0 if self.norm_scale is None or k is None else self.m * k

    @property
    def row_sums(self) -> int:
        """Sums over normalized rows in shared memory: of each thread, and reduced."""
        return 0 if self.norm_scale is None else self.m * (self.threads + self.folded_sums)

    @property
    def rows_per_pass(self) -> int:
        """Rows whose partial sums are reduced across slices at once, in shared memory."""
        size = DataType(self.contraction.dtype).itemsize * self.shared_slices * self.partials(1)
        return max(1, SHARED_BYTES // size)

    @property
    def partials_shape(self) -> tuple[int, int]:
        """Shared memory of partial sums, ``[slices, rows * parts * block_n]``.

        Normalized rows of A lie in the same memory before.
        """
        width = self.partials(min(self.rows_per_pass, self.m))
        return max(self.shared_slices, -(-self.shared_a_size // width)), width

    @property
    def folded_slices(self) -> int:
        """Slices after the first of two steps of the reduction; all of them for one step."""
        count = self.shared_slices
        return 1 << count.bit_length() // 2 if count >= TWO_STEPS else count

    @property
    def folded_sums(self) -> int:
        """Partial sums of a normalized row that threads reduce theirs to, one each."""
        return min(FOLDED_ROW_SUMS, self.threads)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        slices, width = self.partials_shape
        elements = slices * width
        if self.folded_slices < self.shared_slices:
            elements += self.folded_slices * width
        elements += self.row_sums
        if self.head_n:
            rows = min(self.rows_per_pass, self.m)
            elements += rows * (self.parts * self.block_n + self.block_n + self.heads)
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
        """Return the value of each axis at a tile of a block; the last of N counts in tiles."""
        blocks = ceildiv(static_extent(self.n_axes), self.block_n)
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
        found |= {variable: substitute(read, found) for variable, read in self.gathered}
        return found | {self.tile.n_tile: n[-1]}

    def output_index(
        self, block: ir.Expr, row: ir.Expr | int, n_tile: ir.Expr, lane: ir.Expr
    ) -> list[ir.Expr]:
        """Return the place of an element of C over the stage's axes; of several parts the first."""
        place = self.axes_at(block, row, 0, n_tile)
        last = self.n_axes[-1].var
        place[last] = place[last] * self.tile_n + lane
        return [place[a.var] for a in self.contraction.stage.axes]

    @property
    def divides_n(self) -> bool:
        """Whether N is a multiple of ``block_n``."""
        return static_extent(self.n_axes) % self.block_n == 0

    def guard_n(self, block: ir.Expr, n_tile: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Mask the tiles of the last block that lie beyond N."""
        if self.divides_n:
            return body
        tiles = static_extent(self.n_axes) // self.tile_n
        blocks = -(-tiles // self.threads_n)
        return when(tirx.floormod(block, index(blocks)) * self.threads_n + n_tile < tiles, body)


def _itemsize(operand: ir.Expr) -> int:
    """Bytes of the widest element that an operand reads."""
    kinds = [DataType(str(x.ty.dtype)) for x in loads(operand)]
    return max(kind.itemsize for kind in kinds)
