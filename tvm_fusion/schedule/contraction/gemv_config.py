"""How a product of a few rows is cut for a GPU: the large factor is read once, in vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import DataType, ir, tirx
from tvm.target import Target

from ...device import Device
from ...ecg.work import at
from ...fusion.expressions import loads, variables
from ...fusion.program import Axis
from ..address import conditional_loads
from ..loops import Body, ceildiv, constant, coordinates, index, product, threads, when
from .norm_scale_gpu import RowSum
from .operands import SumOfProducts
from .thread_tile import Tile, tile_of

MOST_SUMS = 16  # that a thread holds for each of its columns
# Tiles side by side, vectors of a cache line of 128 bytes or of half of one, and as measured on an
# H200 the blocks from which on they are faster than narrower ones in more blocks.
LANES, LEAST_LANES = {8: 128, 4: 96}, 2
FILL = 1 << 18  # threads that ask for enough at once: as many as a large device holds
LEAST_THREADS = 256
WARP = 32
REGISTERS = 64  # sums of one thread; with more, fewer terms are asked for at once
BESIDES = 40  # registers of one thread that are no sums
FILE = 1 << 16  # registers of a multiprocessor
SHARED_BYTES = 32 * 1024
ROW_SUM_BYTES = 8 * 1024


@dataclass(frozen=True)
class Slim:
    """How a product of few rows is cut.

    Attributes
    ----------
    contraction : SumOfProducts
        The product.
    batch, rows, columns, reduce : tuple of Axis
        Axes of both factors; of the small one; of the large one, without the one that tells pieces
        apart; those of the sum.
    small, large : Expr
        The factors.
    tile : Tile
        What a thread takes at a time.
    lanes : int
        Tiles side by side in a block.
    slices : int
        Threads that share the terms of a column.
    ahead : int
        Tiles that a thread asks for at once.
    row_sum : RowSum or None
        A sum over each row that scales the row's results; the rows are staged in shared memory.
    """

    contraction: SumOfProducts
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    small: ir.Expr
    large: ir.Expr
    tile: Tile
    lanes: int
    slices: int
    ahead: int
    row_sum: RowSum | None = None

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.tile.width

    @property
    def steps(self) -> ir.Expr:
        """Tiles behind each other in a column."""
        return ceildiv(product([a.extent for a in self.reduce]), self.tile.terms)

    @property
    def count(self) -> int:
        """Number of rows."""
        return _static(self.rows)

    @property
    def pieces(self) -> int:
        """Sums at one position, which results may need together."""
        return len(self.contraction.totals)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.slices

    def every(self, body: Body) -> tirx.Stmt:
        """Run something in every thread; behind it, what they wrote is known to all."""
        return threads("threadIdx.x", self.threads, body)

    @property
    def side(self) -> int:
        """Columns of a block."""
        return self.lanes * self.width

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of all columns of all products of the batch."""
        return product([*(a.extent for a in self.batch), ceildiv(_static(self.columns), self.side)])

    @property
    def kept(self) -> int:
        """Sums of a thread: of all rows, pieces and columns of a tile."""
        return self.count * self.pieces * self.width

    def shared(self, rows: int) -> int:
        """Count a slice's sums of some rows, of all columns of a block, in the same order."""
        return rows * self.pieces * self.side

    @property
    def staged(self) -> int:
        """Elements of the small factor that a block keeps for its walk: where a sum scales rows."""
        terms = constant(product([a.extent for a in self.reduce]))
        return 0 if self.row_sum is None or terms is None else self.count * terms

    @property
    def together(self) -> int:
        """Rows that are added up in shared memory at once."""
        size = DataType(self.contraction.dtype).itemsize * self.slices * self.shared(1)
        return max(1, SHARED_BYTES // size)

    def thread(self, number: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Tell a thread's slice and tile; neighbours read what lies side by side."""
        if self.tile.is_along:
            slices = index(self.slices)
            return tirx.floormod(number, slices), tirx.floordiv(number, slices)
        lanes = index(self.lanes)
        return tirx.floordiv(number, lanes), tirx.floormod(number, lanes)

    def place(
        self, number: ir.Expr, row: ir.Expr | int, piece: ir.Expr | int, vector: ir.Expr
    ) -> dict[ir.Var, ir.Expr]:
        """Say where a tile is: for each axis, of the last of the columns the tile's number."""
        blocks = ceildiv(_static(self.columns), self.side)
        around = coordinates(tirx.floordiv(number, blocks), [a.extent for a in self.batch])
        extents = [a.extent for a in self.columns]
        extents[-1] = index(int(extents[-1]) // self.width)
        across = coordinates(tirx.floormod(number, blocks) * self.lanes + vector, extents)
        down = coordinates(index(row), [a.extent for a in self.rows])
        axes = (*self.batch, *self.rows, *self.columns)
        found = {a.var: index(0) for a in self.contraction.stage.axes}
        found |= {a.var: p for a, p in zip(axes, (*around, *down, *across), strict=True)}
        if self.contraction.pieces is not None:
            found[self.contraction.pieces.piece.var] = index(piece)
        return found | {self.tile.across: across[-1]}

    def element(
        self, number: ir.Expr, row: ir.Expr | int, vector: ir.Expr, lane: ir.Expr
    ) -> list[ir.Expr]:
        """Say where a sum is, for each axis of the stage; of several pieces the first."""
        place = self.place(number, row, 0, vector)
        last = self.columns[-1].var
        place[last] = place[last] * self.width + lane
        return [place[a.var] for a in self.contraction.stage.axes]

    @property
    def is_even(self) -> bool:
        """Whether columns fill all blocks."""
        return _static(self.columns) % self.side == 0

    def inside(self, number: ir.Expr, vector: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Leave out what the last block has beyond the columns."""
        if self.is_even:
            return body
        vectors = _static(self.columns) // self.width
        blocks = -(-vectors // self.lanes)
        return when(tirx.floormod(number, index(blocks)) * self.lanes + vector < vectors, body)


def slim(
    contraction: SumOfProducts, target: Target | Device, row_sum: RowSum | None = None
) -> Slim | None:
    """Cut a product of few rows; ``None`` where it is none, or not one of vectors.

    Parameters
    ----------
    contraction : SumOfProducts
        The product.
    target : Target or Device
        A GPU, whose blocks have so many threads at most.
    row_sum : RowSum, optional
        See :attr:`Slim.row_sum`.
    """
    stage = contraction.stage
    piece = None if contraction.pieces is None else contraction.pieces.piece
    wide = [a for a in stage.axes if constant(a.extent) != 1 and a is not piece]
    reduce = tuple(a for a in stage.reduce if constant(a.extent) != 1)
    if not wide or not reduce:
        return None
    large = [f for f in (contraction.left, contraction.right) if wide[-1].var in variables(f)]
    if len(large) != 1:
        return None
    small = contraction.left if large[0] is contraction.right else contraction.right
    used = variables(small), variables(large[0])

    def pick(in_small: bool, in_large: bool) -> tuple[Axis, ...]:
        wanted = (in_small, in_large)
        return tuple(a for a in wide if (a.var in used[0], a.var in used[1]) == wanted)

    batch, rows, columns = pick(True, True), pick(True, False), pick(False, True)
    if len(batch) + len(rows) + len(columns) != len(wide):
        return None
    if any(constant(a.extent) is None for a in (*rows, *columns)):
        return None
    sums = _static(rows) * len(contraction.totals)
    if sums > MOST_SUMS or (piece is not None and piece.var in used[0]):
        return None
    if conditional_loads(small) or any(loads(i) for x in loads(small) for i in x.indices):
        return None
    if not _is_wider(contraction.dtype, (small, large[0])):
        return None
    tile = tile_of(
        large[0],
        columns,
        reduce,
        (*stage.axes, *stage.reduce),
        _static(rows),
        len(contraction.totals),
        target.kind if isinstance(target, Device) else target.kind.name,
    )
    if tile is None:
        return None
    most = min(_most_threads(target), _room(contraction, tile), _most_registers(sums * tile.width))
    tiles = max(1, at(product([a.extent for a in reduce])) // tile.terms)
    across = _static(columns) // tile.width
    if tile.is_along:
        lanes, slices = _along(across, tiles, most)
    else:
        lanes, slices = _beside(across, tiles, most)
    several = 8 if sums * tile.width <= REGISTERS // 2 else 4
    ahead = min(max(1, several // tile.vectors), -(-tiles // slices))
    axes, factors = (batch, rows, columns, reduce), (small, large[0])
    cut = Slim(contraction, *axes, *factors, tile, lanes, slices, ahead, row_sum)
    return cut if _is_staged(cut) else None


def _is_staged(cut: Slim) -> bool:
    """Whether a block has room for its rows and for what its threads add up of them."""
    size = DataType(cut.contraction.dtype).itemsize
    sums = 0 if cut.row_sum is None else cut.count * cut.threads
    return cut.staged * size <= SHARED_BYTES and sums * size <= ROW_SUM_BYTES


def _beside(across: int, tiles: int, most: int) -> tuple[int, int]:
    """Choose lanes and slices where a cache line is of several columns."""
    lanes = next((n for n, blocks in LANES.items() if across // n >= blocks), LEAST_LANES)
    wanted = min(max(FILL // max(1, across // lanes), LEAST_THREADS), most) // lanes
    return lanes, 1 << min(wanted, tiles).bit_length() - 1


def _along(across: int, tiles: int, most: int) -> tuple[int, int]:
    """Choose lanes and slices where a cache line is of several terms."""
    wanted = min(max(FILL // across, LEAST_THREADS), most)
    slices = -(-tiles // -(-tiles // wanted))
    whole = -(-slices // WARP) * WARP
    slices = whole if slices > WARP and whole <= most else slices
    lanes = 1
    while lanes * slices * 2 <= min(LEAST_THREADS, most) and lanes * 2 <= across:
        lanes *= 2
    return lanes, slices


def _is_wider(dtype: str, factors: Sequence[ir.Expr]) -> bool:
    """Whether factors that become this type keep what they are."""
    return all(DataType(str(f.ty.dtype)).bits <= DataType(dtype).bits for f in factors)


def _room(contraction: SumOfProducts, tile: Tile) -> int:
    """Count the threads whose sums of one row fit shared memory."""
    size = DataType(contraction.dtype).itemsize * tile.width * len(contraction.totals)
    return SHARED_BYTES // size


def _most_registers(sums: int) -> int:
    """Count the threads of a block whose sums, and what they need besides, are registers."""
    return 1 << (FILE // (sums + BESIDES)).bit_length() - 1


def _most_threads(target: Target | Device) -> int:
    if isinstance(target, Device):
        return target.max_threads_per_block or 1024
    return int(target.attrs.get("max_num_threads", 1024))


def _static(axes: Sequence[Axis]) -> int:
    return int(product([a.extent for a in axes]))
