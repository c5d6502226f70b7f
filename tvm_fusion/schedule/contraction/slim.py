"""How a product of a few rows is cut for a GPU: the large factor is read once, in vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import DataType, ir, sym, tirx
from tvm.target import Target

from ...device import Device
from ...ecg.work import at
from ...fusion.expressions import loads, variables
from ...fusion.program import Axis
from ..address import conditional_loads, offset, same, stride
from ..gpu import VECTOR_BYTES
from ..loops import ceildiv, constant, coordinates, index, product, substitute, when
from .operands import SumOfProducts

MOST_SUMS = 16  # that a thread holds for each of its columns
LANES = (8, 4, 2)  # vectors side by side: a cache line of 128 bytes, or parts of one
BLOCKS = 128  # below which multiprocessors of large devices are idle
FILL = 1 << 18  # threads that ask for enough at once: as many as a large device holds
LEAST_THREADS = 256
REGISTERS = 64  # sums of one thread; with more, fewer terms are asked for at once
SHARED_BYTES = 32 * 1024


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
    streamed : tuple of TensorLoad
        Reads of the large factor in vectors.
    width : int
        Columns of a vector.
    lanes : int
        Vectors side by side in a block.
    slices : int
        Threads that share the terms of a column.
    ahead : int
        Terms that a thread asks for at once.
    """

    contraction: SumOfProducts
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    streamed: tuple[ir.TensorLoad, ...]
    width: int
    lanes: int
    slices: int
    ahead: int

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

    @property
    def side(self) -> int:
        """Columns of a block."""
        return self.lanes * self.width

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of all columns of all products of the batch."""
        return product([*(a.extent for a in self.batch), ceildiv(_static(self.columns), self.side)])

    @property
    def together(self) -> int:
        """Rows that are added up in shared memory at once."""
        size = _bytes(self.contraction.dtype) * self.threads * self.width * self.pieces
        return max(1, SHARED_BYTES // size)

    def place(
        self,
        number: ir.Expr,
        row: ir.Expr | int,
        piece: ir.Expr | int,
        vector: ir.Expr,
        lane: ir.Expr,
    ) -> list[ir.Expr]:
        """Say where a sum is, for each axis of the stage."""
        blocks = ceildiv(_static(self.columns), self.side)
        around = coordinates(tirx.floordiv(number, blocks), [a.extent for a in self.batch])
        extents = [a.extent for a in self.columns]
        extents[-1] = index(int(extents[-1]) // self.width)
        across = coordinates(tirx.floormod(number, blocks) * self.lanes + vector, extents)
        across[-1] = across[-1] * self.width + lane
        down = coordinates(index(row), [a.extent for a in self.rows])
        found = dict(
            zip((*self.batch, *self.rows, *self.columns), (*around, *down, *across), strict=True)
        )
        if self.contraction.pieces is not None:
            found[self.contraction.pieces.piece] = index(piece)
        return [found.get(axis, index(0)) for axis in self.contraction.stage.axes]

    def inside(self, number: ir.Expr, vector: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Leave out what the last block has beyond the columns."""
        vectors = _static(self.columns) // self.width
        blocks = -(-vectors // self.lanes)
        if vectors % self.lanes == 0:
            return body
        return when(tirx.floormod(number, index(blocks)) * self.lanes + vector < vectors, body)


def slim(contraction: SumOfProducts, target: Target | Device) -> Slim | None:
    """Cut a product of few rows; ``None`` where it is none, or not one of vectors.

    Parameters
    ----------
    contraction : SumOfProducts
        The product.
    target : Target or Device
        A GPU, whose blocks have so many threads at most.
    """
    stage = contraction.stage
    if conditional_loads(contraction.term()):
        return None
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
    streamed = _streamed(large[0], columns[-1], [a.var for a in (*stage.axes, *stage.reduce)])
    if not streamed:
        return None
    width = _width(streamed, columns[-1])
    if width is None:
        return None
    vectors = _static(columns) // width
    lanes = next((n for n in LANES if vectors // n >= BLOCKS), LANES[-1])
    blocks = max(1, vectors // lanes)
    room = SHARED_BYTES // (_bytes(contraction.dtype) * width * len(contraction.totals))
    most = min(_most_threads(target), room)
    wanted = min(max(FILL // blocks, LEAST_THREADS), most) // lanes
    terms = at(product([a.extent for a in reduce]))
    slices = 1 << min(wanted, terms).bit_length() - 1
    ahead = 8 if sums * width <= REGISTERS // 2 else 4
    return Slim(contraction, batch, rows, columns, reduce, streamed, width, lanes, slices, ahead)


def _most_threads(target: Target | Device) -> int:
    if isinstance(target, Device):
        return target.max_threads_per_block or 1024
    return int(target.attrs.get("max_num_threads", 1024))


def _streamed(factor: ir.Expr, column: Axis, axes: Sequence[ir.Var]) -> tuple[ir.TensorLoad, ...]:
    """List the different reads that lie along the columns; none if one lies in another way."""
    found: list[ir.TensorLoad] = []
    for x in loads(factor):
        if column.var not in variables(x) or any(same(x, y) for y in found):
            continue
        step = stride(offset(x.source, x.indices), column.var, axes)
        if step is None or constant(step) != 1:
            return ()
        found.append(x)
    return tuple(found)


def _width(streamed: Sequence[ir.TensorLoad], column: Axis) -> int | None:
    """Choose the columns of a vector: of the widest one that begins where it may, always."""
    size = max(_bytes(str(x.ty.dtype)) for x in streamed)
    vector, analyzer = tirx.Var("vector", "int64"), sym.Analyzer()

    def is_aligned(width: int) -> bool:
        starts = [substitute(offset(x.source, x.indices), {column.var: vector * width})
                  for x in streamed]  # fmt: skip
        return int(column.extent) % width == 0 and all(
            analyzer.can_prove_equal(tirx.floormod(start, index(width)), 0) for start in starts
        )

    widths = [n for n in (8, 4, 2) if n * size <= VECTOR_BYTES]
    return next((n for n in widths if is_aligned(n)), None)


def _bytes(dtype: str) -> int:
    return max(1, DataType(dtype).bits // 8)


def _static(axes: Sequence[Axis]) -> int:
    return int(product([a.extent for a in axes]))
