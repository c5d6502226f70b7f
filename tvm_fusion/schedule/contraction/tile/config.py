"""Configuration of a tiled GEMM on tensor cores: block tiles, warps, pipeline stages, split-K.

C[m, n] = sum over k of A[m, k] * B[k, n]; M and the batch may be symbolic
grid     batch * tiles of C, times split_k ranks: see :mod:`.grid`
block    warps_m * warps_n warps of warp_m * warp_n sums, times warps_k slices of each block_k
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from tvm import ir, tirx

from ....core.tir.expressions import call_name, loads
from ....core.tir.loops import index
from ...instructions.nvidia import BYTE_TYPES, FLOAT8_TYPES, HALF_TYPES
from .grid import TileGrid
from .problem import GemmProblem
from .ragged_tiles import Table
from .shape import TileConfig

Own = TypeVar("Own", bound="TileGemmConfig")
ONE_STAGE = 0.65  # of the registers of a loop over stages


@dataclass(frozen=True)
class TileGemmConfig:
    """Configuration of a tiled GEMM: what is computed, in which tiles, what its kernel takes."""

    problem: GemmProblem  # what is computed
    tile: TileConfig  # the numbers that a tuner varies
    # Blocks of a multiprocessor that the compiler leaves registers for: as many as the model counts
    # with. Left alone, it took 158 registers of 256 threads where 126 did not spill, and
    # multiprocessors had one block.
    min_blocks_per_sm: int = field(default=1, kw_only=True)
    steps_of_no_group: ClassVar[int] = 0  # along K, of a tile of rows of no group

    @cached_property
    def grid(self) -> TileGrid:
        """Where the tiles lie."""
        return TileGrid(self.problem, self.tile)

    def with_tile(self: Own, **numbers: Any) -> Own:
        """Change numbers of the tile."""
        return replace(self, tile=replace(self.tile, **numbers))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.tile.accumulators

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of a launch."""
        return self.grid.tiles

    @property
    def registers(self) -> int:
        """Registers of a thread, within 25 % of ptxas: see test_claimed_resources.

        Of split operands (3xTF32) fewer than of any K: a warp with one step of each stage adds to
        one set of sums, and a single stage leaves no loop.
        """
        found = self.tile.registers_at_most
        if self.problem.products == 1:
            return found
        if self.tile.block_k == self.problem.k_step * self.tile.warps_k:
            found -= self.accumulators
        return max(32, round(found * ONE_STAGE)) if self.grid.k_tiles == 1 else found

    @property
    def workspace_elements(self) -> int:
        """Partial sums of split-K in global memory: whole tiles of every rank."""
        if not self.tile.has_workspace:
            return 0
        return int(self.grid.tiles) * self.accumulators * self.threads

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.tile.shared_bytes + self.problem.table_bytes

    def table(self, shared: ir.Var) -> Table:
        """Return the shared-memory offset of the table of ragged rows: behind all else."""
        first = self.shared_bytes - self.problem.table_bytes
        return Table(shared, first, self.problem.moves)

    def steps(self, count: int) -> ir.Expr:
        """Return how many of the steps along K a tile that was found takes."""
        if self.problem.ragged is None:
            return index(count)
        rest = index(self.steps_of_no_group)
        return tirx.Select(self.problem.ragged.has_products, index(count), rest)


# Types whose values another type holds exactly.
_EXACT_IN = {
    "float16": FLOAT8_TYPES,
    "bfloat16": FLOAT8_TYPES,
    "float32": HALF_TYPES + FLOAT8_TYPES,
    "int16": BYTE_TYPES,
    "int32": BYTE_TYPES,
}


def narrowed(operand: ir.Expr, dtype: str) -> ir.Expr | None:
    """Cast an operand to a type that holds its values exactly; ``None`` if that one does not."""
    core = narrow_operand(operand)
    own = str(core.ty.dtype)
    if own == dtype:
        return core
    return tirx.Cast(dtype, core) if own in _EXACT_IN.get(dtype, ()) else None


def narrow_operand(operand: ir.Expr) -> ir.Expr:
    """Take casts that change no value off an operand: what tensor cores multiply."""
    while isinstance(operand, tirx.Cast):
        wide, narrow = str(operand.ty.dtype), str(operand.value.ty.dtype)
        if narrow != wide and narrow not in _EXACT_IN.get(wide, ()):
            break
        operand = operand.value
    return operand


def is_plain(operand: ir.Expr) -> bool:
    """Whether an operand is loaded as it is."""
    return isinstance(operand, ir.TensorLoad) and not any(loads(i) for i in operand.indices)


def unguarded(operand: ir.Expr) -> tuple[ir.Expr, ir.Expr | None]:
    """Split an operand that is zero where a condition does not hold, as around an image.

    Returns
    -------
    (Expr, Expr or None)
        What it is where the condition holds, and the condition.
    """
    if isinstance(operand, ir.Call) and call_name(operand) == "if_then_else":
        condition, value, zero = operand.args
        if isinstance(zero, tirx.FloatImm | tirx.IntImm) and float(zero.value) == 0:
            return value, condition
    return operand, None
