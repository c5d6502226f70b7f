"""Configuration of a tiled GEMM on tensor cores: block tiles, warps, pipeline stages, split-K.

C[m, n] = sum over k of A[m, k] * B[k, n]; M and the batch may be symbolic
grid     batch * tiles of C, M innermost in groups of group_m, times split_k ranks of a cluster
block    warps_m * warps_n warps of warp_m * warp_n sums, times warps_k slices of each block_k
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import DataType, ir, tirx

from ...core.expressions import loads
from ...core.loops import ceildiv, constant, coordinates, index, product
from ...program.stage import Axis
from ..gpu.mma import ACCUMULATORS, GROUPS, WARP
from .gemm_view import GemmView
from .operands import SumOfProducts

M16 = K16 = 16  # of mma.m16n8k16
OTHER_REGISTERS = 40  # of a thread, beside accumulators, fragments and addresses
STAGE_PAD = 8  # float32 between staged rows of C: rows of a fragment lie in different banks
REGISTER_FILE = 1 << 16


@dataclass(frozen=True)
class TileGemmConfig(GemmView):
    """Configuration of a tiled GEMM.

    Attributes
    ----------
    contraction : SumOfProducts
        The product.
    half : str
        Type of A and B in shared memory.
    block_m, block_n, block_k : int
        The tile of C of a block, and the k of a pipeline stage; powers of two.
    warps_m, warps_n : int
        Warps that share the tile.
    warps_k : int
        Warps that share the k of a stage (slice-K); their sums are added up in shared memory.
    stages : int
        Stages of the cp.async pipeline.
    split_k : int
        Blocks that share K (split-K): a cluster, whose sums are added up in a fixed order.
    group_m : int
        Tiles along M whose blocks run one after the other, so that L2 holds their B.
    """

    contraction: SumOfProducts
    half: str
    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    warps_k: int = 1
    stages: int = 4
    split_k: int = 1
    group_m: int = 8

    @property
    def m(self) -> ir.Expr:
        """Rows of C, of one matrix of the batch."""
        return product([a.extent for a in self.m_axes])

    @property
    def n(self) -> int:
        """Columns of C."""
        return _static(self.n_axes)

    @property
    def k(self) -> int:
        """Terms of a sum."""
        return _static(self.k_axes)

    @property
    def warp_m(self) -> int:
        """Rows of a warp."""
        return self.block_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of a warp."""
        return self.block_n // self.warps_n

    @property
    def k_tiles(self) -> int:
        """Pipeline steps of a block."""
        return -(-self.k // (self.block_k * self.split_k))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps_m * self.warps_n * self.warps_k * WARP

    @property
    def tiles_n(self) -> int:
        """Block tiles along N."""
        return -(-self.n // self.block_n)

    @property
    def tiles_m(self) -> ir.Expr:
        """Block tiles along M."""
        return ceildiv(self.m, self.block_m)

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of the grid."""
        batch = [a.extent for a in self.batch]
        return product([*batch, self.tiles_m, self.tiles_n, self.split_k])

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.warp_m // M16 * (self.warp_n // GROUPS) * ACCUMULATORS

    @property
    def stage_bytes(self) -> int:
        """Shared memory of A and B in a pipeline stage."""
        rows = self.block_m + self.block_n
        return rows * self.block_k * DataType(self.half).itemsize

    @property
    def staged(self) -> tuple[int, int]:
        """Slabs of 16 rows, and columns, of a warp that the epilogue stages at once.

        All that fit the shared memory of the pipeline.
        """
        slabs, columns = self.warp_m // M16, self.warp_n
        while self._staged_bytes(slabs, columns) > self.stages * self.stage_bytes:
            if slabs > 1:
                slabs //= 2
            elif columns > GROUPS:
                columns //= 2
            else:
                break
        return slabs, columns

    def _staged_bytes(self, slabs: int, columns: int) -> int:
        width = columns * self.warps_n + STAGE_PAD
        return self.warps_k * slabs * self.warps_m * M16 * width * 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: pipeline stages, and behind them sums on their way out."""
        return max(self.stages * self.stage_bytes, self._staged_bytes(*self.staged))

    @property
    def registers(self) -> int:
        """Registers of a thread, within 25 % of ptxas: see test_claimed_resources."""
        fragments = (self.warp_m + self.warp_n) // M16 * 4 * 2
        chunks = self.stage_bytes // 16 // self.threads
        wanted = OTHER_REGISTERS + self.accumulators + fragments + 2 * chunks
        return max(32, min(255, wanted, REGISTER_FILE // self.threads // 8 * 8))

    def tile_of(self, block: ir.Expr) -> TilePlace:
        """Give the tile of a block: tiles along M innermost, in groups that share B."""
        tiles_m, tiles_n = self.tiles_m, self.tiles_n
        rank = tirx.floormod(block, index(self.split_k))
        block = tirx.floordiv(block, index(self.split_k))
        per_matrix = product([tiles_m, tiles_n])
        matrix, tile = tirx.floordiv(block, per_matrix), tirx.floormod(block, per_matrix)
        batch = coordinates(matrix, [a.extent for a in self.batch])
        static = constant(tiles_m)
        if static is not None and static <= self.group_m:
            first, size = index(0), index(static)
            inside = tile
        else:
            width = index(self.group_m * tiles_n)
            first = tirx.floordiv(tile, width) * self.group_m
            inside = tirx.floormod(tile, width)
            size = index(self.group_m)
            if static is None or static % self.group_m:
                size = tirx.min(tiles_m - first, size)
        return TilePlace(
            tuple(batch), first + tirx.floormod(inside, size), tirx.floordiv(inside, size), rank
        )

    def axes_at(self, batch: Sequence[ir.Expr]) -> dict[ir.Var, ir.Expr]:
        """Give the values of the batch axes, and of those of extent 1."""
        found = {a.var: index(0) for a in self.contraction.stage.axes}
        found |= {a.var: index(0) for a in self.contraction.stage.reduce}
        for axis in (*self.m_axes, *self.n_axes, *self.k_axes):
            del found[axis.var]
        return found | {a.var: p for a, p in zip(self.batch, batch, strict=True)}


@dataclass(frozen=True)
class TilePlace:
    """A block's tile: coordinates of its matrix, tile along M and N, rank among split-K blocks."""

    batch: tuple[ir.Expr, ...]
    m_tile: ir.Expr
    n_tile: ir.Expr
    rank: ir.Expr


def axis_values(axes: Sequence[Axis], flat: ir.Expr) -> dict[ir.Var, ir.Expr]:
    """Give the values of axes at a flat position."""
    values = coordinates(flat, [a.extent for a in axes])
    return {a.var: v for a, v in zip(axes, values, strict=True)}


def half_operand(operand: ir.Expr) -> ir.Expr:
    """Take a cast to float32 off an operand of a half type."""
    while isinstance(operand, tirx.Cast) and str(operand.ty.dtype) == "float32":
        operand = operand.value
    return operand


def is_plain(operand: ir.Expr) -> bool:
    """Whether an operand is loaded as it is."""
    return isinstance(operand, ir.TensorLoad) and not any(loads(i) for i in operand.indices)


def _static(axes: Sequence[Axis]) -> int:
    return int(product([a.extent for a in axes]))
