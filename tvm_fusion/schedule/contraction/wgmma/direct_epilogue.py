"""Epilogue of a GEMM from registers: results in vectors, without shared memory.

    before the main loop, or at its end:
      load what the first results read, in vectors                        global
    for slab, for the two rows of a thread, for some groups of 32 columns:
      load what the next results read, into the other copy                global
      total[8] of each group = what four lanes have, transposed           shuffles
      for each group:  compute element by element, store in vectors       global

Of four tiles of eight columns, each of four lanes has two columns of a row; transposed, each has
one tile: eight adjacent columns. Rows and columns beyond the edge load the last ones again. Sums of
all parts of a column split are in one thread, which has the tiles of the same positions of each
part: so a head is rotated by the thread that has both of its halves. Where a tile's positions are
no multiple of 32, some lanes have none of the last group's.

Of pooled sums, the sixteen rows of a fragment are two rows of eight pixels: each thread has one
above the other, the lane four further the next pixel. One of the two stores the largest.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ....core.tir.expressions import load
from ....core.tir.loops import coordinates, index, local, sequence, unrolled, when
from ...gpu.matrix.wgmma import M
from ...gpu.memory.shared_tiles import touch
from ...gpu.threads.warp import LANES, butterfly, lane_of
from ...instructions.table import newest
from ..problem.epilogue.fuse import store_results
from ..tile.grid import TilePlace
from ..tile.results.group_sums import GroupRegisters
from ..tile.results.results import VectorResults
from ..tile.results.row_values import RowRegisters
from ..tile.results.vectors import ResultVectors, result_vectors
from ..tile.shape import M16
from .config import WgmmaConfig, WgmmaWindowConfig

_MMA = newest("mma.sync", "float16", "float16")  # of all types C lies the same
COLUMNS = _MMA.n * _MMA.c.lanes_per_row  # of four lanes
# Groups of columns whose loads are in flight together: as many as accumulators leave registers for.
AT_ONCE, FEWER_AT_ONCE, MANY_ACCUMULATORS = 4, 2, 96

_TRANSPOSE = """
__device__ __forceinline__ void {name}({kind}* to, {tiles}) {{
  bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  {kind} v[8], w[8];
  {load}
  #pragma unroll
  for (int i = 0; i < 4; ++i) {{
    int low = i / 2 * 4 + i % 2;
    {kind} other = __shfl_xor_sync(0xffffffffu, odd ? v[low] : v[low + 2], 1);
    w[low] = odd ? other : v[low];
    w[low + 2] = odd ? v[low + 2] : other;
  }}
  #pragma unroll
  for (int i = 0; i < 4; ++i) {{
    {kind} other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 4], 2);
    to[i] = high ? other : w[i];
    to[i + 4] = high ? w[i + 4] : other;
  }}
}}
"""
# Four tiles of eight columns whose sums are adjacent, or lie anywhere among a thread's registers.
_ADJACENT = (
    "const {kind}* acc",
    "#pragma unroll\n  for (int i = 0; i < 8; ++i) v[i] = acc[i / 2 * 4 + i % 2];",
)
_APART = (
    "const {kind}* a, const {kind}* b, const {kind}* c, const {kind}* d",
    "const {kind}* tiles[] = {{a, b, c, d}};\n  #pragma unroll\n"
    "  for (int i = 0; i < 8; ++i) v[i] = tiles[i / 2][i % 2];",
)


class StoredFragment(NamedTuple):
    """Results that a thread stores together."""

    # Row and position of the tile.
    row: ir.Expr
    n: ir.Expr
    group: int  # the number of the first group of columns
    register: int  # the first accumulator of the row in a tile of eight columns
    slab: int  # the slab of the row
    own_row: int  # the row's number among the thread's
    is_first: ir.Expr | None  # whether the thread stores them, where others have the same


class DirectEpilogue:
    """Stores the results of a consumer's accumulators.

    Parameters
    ----------
    acc
        Accumulators of a thread, ``[slab, column tile, 4]``.
    first_row
        The consumer's first row of the tile.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    """

    def __init__(
        self, config: WgmmaConfig, place: TilePlace, acc: ir.Var, first_row: ir.Expr
    ) -> None:
        self._config, self._place, self._acc, self._first_row = config, place, acc, first_row
        found = result_vectors(config.problem)
        self._vectors = ResultVectors(1 if found.is_along_m else found.width, False)
        self._positions = config.tile.tile_positions
        self._apart: list[int] = []  # lanes of a window, from each other
        if isinstance(config, WgmmaWindowConfig) and config.window.pooled:
            inner = config.window.pooled[1:]
            rows = [math.prod(inner[n + 1 :]) for n in range(len(inner))]
            self._apart = [n * _MMA.c.lanes_per_row for n in rows]
        groups = -(-self._positions // COLUMNS)
        self._groups, self._is_ragged = groups, self._positions % COLUMNS != 0
        at_once = min(
            FEWER_AT_ONCE if config.accumulators >= MANY_ACCUMULATORS else AT_ONCE, groups
        )
        at_once = max(1, at_once // config.problem.parts)
        if config.problem.contraction.group_sums is not None:
            at_once = min(at_once, FEWER_AT_ONCE)  # a group's elements take registers, too
        sums = config.problem.contraction.group_sums
        self._of_group = 1 if sums is None else sums.width // COLUMNS  # vectors of a thread
        self._at_once = next(
            n
            for n in (*range(at_once, 0, -1), self._of_group)
            if groups % n == n % self._of_group == 0
        )
        self._size = self._at_once * _MMA.n  # sums of each part of a split
        self._total = local(
            "total", [config.problem.parts * self._size], config.problem.contraction.dtype
        )
        copies = 2 * self._size // self._vectors.width
        self._results = (
            VectorResults(config, self._vectors, copies) if self._vectors.width > 1 else None
        )
        self.buffers = [self._total, *(self._results.buffers if self._results else [])]
        self._rows = self._group = None
        if config.problem.contraction.row_values is not None:
            self._rows = RowRegisters(config, 2 * config.slabs)
            self.buffers += self._rows.buffers
        if sums is not None:
            self._group = GroupRegisters(config, _MMA.c.lanes_per_row)
            self.buffers += self._group.buffers

    @property
    def loads_early(self) -> bool:
        """Whether registers are left to hold what the first results read during the main loop."""
        return self._config.accumulators < MANY_ACCUMULATORS

    def row_values(self, thread: ir.Expr) -> list[tirx.Stmt]:
        """Compute what results read of their rows, before the main loop."""
        if self._rows is None:
            return []
        firsts = {part.own_row: part.row for part in self._parts(thread)}
        return [self._rows.fill(own, self._row_at(row)) for own, row in firsts.items()]

    def prologue(self, thread: ir.Expr) -> tirx.Stmt:
        """Load what the first results read, before the sums are complete."""
        if self._results is None or not self._results.reads:
            return sequence([])
        return self._load(next(self._parts(thread)), 0)

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the results of a thread of the warpgroup; the prologue stands before.

        What the next results read is loaded before results are stored, which might be to the same
        memory for all that the compiler knows.
        """
        stmts = [touch(self._acc, self._config.accumulators - 1)]
        if self._apart:
            stmts.append(self._pool(thread))
        parts = list(self._parts(thread))
        for number, part in enumerate(parts):
            if self._results is None:
                stmts.append(self._store_elements(part))
                continue
            if self._results.reads and number + 1 < len(parts):
                stmts.append(self._load(parts[number + 1], number + 1))
            stmts += self._totals(part)
            stmts += self._store(part, number, thread)
        return sequence(stmts)

    def _pool(self, thread: ir.Expr) -> tirx.Stmt:
        """Put the largest sums of windows in place of those of a thread's first rows."""
        lane = lane_of(thread)

        def one(number: ir.Expr) -> tirx.Stmt:
            fragment, column = coordinates(number, [index(1), _MMA.c.run])
            first = fragment * _MMA.c.per_lane + column
            own = load(self._acc, [first])
            down = tirx.Max(own, load(self._acc, [first + _MMA.c.run]))
            stmts = [tirx.BufferStore(self._acc, down, [first])]
            for apart in self._apart:
                across = tirx.Max(own, butterfly(own, lane, apart))
                stmts.append(tirx.BufferStore(self._acc, across, [first]))
            return sequence(stmts)

        fragments = self._config.accumulators // _MMA.c.per_lane
        return unrolled("pooled", fragments * _MMA.c.run, one)

    def _parts(self, thread: ir.Expr) -> Iterator[StoredFragment]:
        """Yield the groups of columns whose results are stored together, row after row."""
        config, c = self._config, _MMA.c
        warp, lane = coordinates(thread, [index(1), LANES])
        in_row = tirx.floormod(lane, index(c.lanes_per_row))
        firsts = [tirx.floormod(tirx.floordiv(lane, n), index(2)).equal(0) for n in self._apart]
        is_first = tirx.all(*firsts) if firsts else None
        for slab in range(config.slabs):
            for half, register in enumerate(range(0, c.per_lane, c.run)):
                if half and self._apart:
                    break
                down, _ = c.of_register(register)
                row = self._first_row + slab * M + warp * M16 + down + c.of_lane(lane)[0]
                for first in range(0, self._groups, self._at_once):
                    n = in_row * _MMA.n + first * COLUMNS
                    given = row, n, first, register, slab, 2 * slab + half
                    yield StoredFragment(*given, is_first)

    def _columns(self, part: StoredFragment) -> list[ir.Expr]:
        """List the first columns of a part's vectors."""
        width = self._vectors.width
        starts = range(0, _MMA.n, width)
        return [part.n + i * COLUMNS + j for i in range(self._at_once) for j in starts]

    def _totals(self, part: StoredFragment) -> list[tirx.Stmt]:
        """Reduce across four lanes: each gets the sums of eight columns of each group."""
        config = self._config
        stmts = [touch(self._total, config.problem.parts * self._size - 1)]
        for of_split, i in itertools.product(range(config.problem.parts), range(self._at_once)):
            starts = self._starts(of_split, (part.group + i) * COLUMNS)
            sums = [
                load(
                    self._acc,
                    [index((part.slab * config.n8 + tile) * _MMA.c.per_lane + part.register)],
                )
                for tile in starts
            ]
            to = load(self._total, [index(of_split * self._size + i * _MMA.n)])
            stmts.append(_transpose(to, sums))
        return stmts

    def _starts(self, of_split: int, first: int) -> list[int]:
        """Return the first of four adjacent tiles of eight columns, or all four.

        Lanes without a position have the sums of the last one.
        """
        config = self._config
        last = self._positions - _MMA.n
        places = [min(first + i * _MMA.n, last) for i in range(_MMA.c.lanes_per_row)]
        tiles = [config.column_of(of_split, place) // _MMA.n for place in places]
        return tiles[:1] if tiles == [*range(tiles[0], tiles[0] + len(tiles))] else tiles

    def _store_elements(self, part: StoredFragment) -> tirx.Stmt:
        """Store the results of a part one by one."""
        stmts = self._totals(part)
        for i, column in enumerate(self._columns(part)):
            where = self._where(part.row, column)
            at = [where[a.var] for a in self._config.problem.contraction.stage.axes]
            sums = [self._sum(of_split, i) for of_split in range(self._config.problem.parts)]
            stored = store_results(self._config.problem.contraction, at, *sums)
            inside = self._inside(part, column)
            stmts.append(stored if inside is None else when(inside, stored))
        return sequence(stmts)

    def _load(self, part: StoredFragment, number: int) -> tirx.Stmt:
        """Load what the results of a part read, into one of two copies of registers."""
        assert self._results is not None
        columns, stmts = self._columns(part), []
        row = self._row_at(part.row)
        for i, column in enumerate(columns):
            width = self._vectors.width
            if self._has_absent(part):
                column = tirx.min(column, index(self._positions - width))
            where = row | self._config.grid.column_at(self._place.n_tile, column, clamped=width)
            copy = index(number % 2 * len(columns) + i)
            stmts.append(self._results.load(copy, where))
        return sequence(stmts)

    def _row_at(self, row: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the axes at a row, or at the last one for those beyond the edge."""
        found = self._config.problem.axes_at(self._place.batch)
        return found | self._config.grid.row_at(self._place.m_tile, row, is_clamped=True)

    def _store(self, part: StoredFragment, number: int, thread: ir.Expr) -> list[tirx.Stmt]:
        """Compute the results of a part, and store them."""
        assert self._results is not None
        columns, width, stmts = self._columns(part), self._vectors.width, []
        for i, column in enumerate(columns):

            def sums(of_split: int, lane: int, i: int = i) -> ir.Expr:
                return self._sum(of_split, i * width + lane)

            copy = index(number % 2 * len(columns) + i)
            where, inside = self._where(part.row, column), self._inside(part, column)
            values = where if self._rows is None else where | self._rows.at(part.own_row)
            stmts.append(self._results.finish(copy, values, sums, inside))
            if self._group is None:
                continue
            contraction = self._config.problem.contraction
            groups = contraction.group_sums
            assert groups is not None
            made = self._results.made[contraction.results[groups.result].buffer]
            stmts.append(self._group.keep(i % self._of_group * width, made, width))
            if (i + 1) % self._of_group == 0:
                stmts.append(self._group.store(thread, where, inside))
        return stmts

    def _sum(self, of_split: int, i: int) -> ir.Expr:
        return load(self._total, [index(of_split * self._size + i)])

    def _where(self, row: ir.Expr, n: ir.Expr) -> dict[ir.Var, ir.Expr]:
        return self._config.grid.element_at(self._place, row, n)

    def _inside(self, part: StoredFragment, column: ir.Expr) -> ir.Expr | None:
        """Tell whether a vector exists, where the last tile reaches beyond the edge."""
        inside = self._config.grid.bounds(self._place, part.row, column)
        if self._has_absent(part):
            inside.append(column < self._positions)
        if part.is_first is not None:
            inside.append(part.is_first)
        return tirx.all(*inside) if inside else None

    def _has_absent(self, part: StoredFragment) -> bool:
        """Whether some lanes have no position of the tile."""
        return self._is_ragged and part.group + self._at_once == self._groups


def _transpose(to: ir.TensorLoad, tiles: Sequence[ir.TensorLoad]) -> tirx.Stmt:
    """Transpose four tiles among four lanes: each gets eight columns of its own.

    Parameters
    ----------
    tiles
        The first sum of each tile; of one alone, the others are adjacent.
    """
    kind, name = "float", "tvm_fusion_transpose_quad"
    if str(tiles[0].ty.dtype) == "int32":
        kind, name = "int", f"{name}_int"
    if len(tiles) == 1:
        given, read = _ADJACENT
    else:
        (given, read), name = _APART, f"{name}_apart"
    given, read = (text.format(kind=kind) for text in (given, read))
    source = _TRANSPOSE.format(name=name, kind=kind, tiles=given, load=read)
    addresses = map(tirx.address_of, (to, *tiles))
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))
