"""What one thread of a product of few rows takes at a time: some terms of some columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import DataType, ir, sym, tirx

from ...fusion.expressions import loads, variables
from ...fusion.program import Axis
from ..address import conditional_loads, is_aligned, offset, stride
from ..gpu.vector_loads import lanes_of, resolved
from ..loops import constant, coordinates, index, substitute
from .dequantize import has_integers

PERIODS = ((1, 1), (2, 1), (1, 2))  # terms and columns after which packed weights repeat
VECTORS = 4  # that a tile reads of weights, where terms or columns share something
# Sums, or elements of the small factor, in registers. LLVM for AMD reads for more rows ahead: with
# 128 sums a thread took 319 registers on gfx942, 64 of them spilled.
MOST_VALUES = {"cuda": 128, "rocm": 64}


@dataclass(frozen=True, eq=False)
class Tile:
    """Some terms of some columns.

    Attributes
    ----------
    columns : tuple of Axis
        The columns' axes; a tile takes columns of the last.
    reduce : tuple of Axis
        The terms' axes; tiles take terms of the last.
    terms, width : int
        Terms and columns of a tile.
    is_along : bool
        Whether vectors lie along the terms, not the columns.
    vectors : int
        How many a tile has of the weights.
    lanes : int
        Elements of such a vector.
    """

    columns: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    terms: int
    width: int
    is_along: bool = False
    vectors: int = 1
    lanes: int = 1

    @cached_property
    def across(self) -> ir.Var:
        """Stands for the tile's number in the last axis of the columns."""
        return tirx.Var("tile_column", "int64")

    @cached_property
    def down(self) -> ir.Var:
        """Stands for the tile's number in all terms."""
        return tirx.Var("tile_term", "int64")

    def at(self, expr: ir.Expr, term: int, column: int) -> ir.Expr:
        """Express a factor at a place of the tile."""
        extents = [a.extent for a in self.reduce]
        along = coordinates(self.down * self.terms + term, extents)
        place = {a.var: p for a, p in zip(self.reduce, along, strict=True)}
        place[self.columns[-1].var] = self.across * self.width + column
        return substitute(expr, place)

    def fits(self) -> bool:
        """Whether the extents are multiples of the tile."""
        extents = (self.reduce[-1].extent, self.terms), (self.columns[-1].extent, self.width)
        return all(size == 1 or _is_multiple(constant(e), size) for e, size in extents)

    def analyzer(self, axes: Sequence[Axis]) -> sym.Analyzer:
        """Make an analyzer that knows the ranges of axes and of the tile's numbers."""
        analyzer = sym.Analyzer()
        counts = [(a.var, constant(a.extent)) for a in axes]
        last = constant(self.columns[-1].extent)
        counts.append((self.across, None if last is None else last // self.width))
        for variable, count in counts:
            if count is not None:
                analyzer.bind(variable, ir.Range.from_min_extent(index(0), index(count)))
        return analyzer


def _is_multiple(extent: int | None, size: int) -> bool:
    return extent is not None and extent % size == 0


def tile_of(
    large: ir.Expr,
    columns: tuple[Axis, ...],
    reduce: tuple[Axis, ...],
    axes: Sequence[Axis],
    rows: int,
    pieces: int,
    kind: str,
    accept: Callable[[Tile], bool] = lambda _: True,
) -> Tile | None:
    """Choose a tile whose reads of the large factor are as wide as they may be.

    Parameters
    ----------
    large : Expr
        The large factor.
    columns, reduce, axes : sequence of Axis
        Those of the large factor alone, of the sum, and all.
    rows, pieces : int
        Each column has so many sums.
    kind : {"cuda", "rocm"}
        Of the GPU.
    accept : callable
        What else a tile must be.

    Returns
    -------
    Tile or None
        ``None`` if it lies neither along the columns nor along the terms.
    """
    for terms, width in PERIODS:
        period = Tile(columns, reduce, terms, width)
        if not period.fits():
            continue
        analyzer = period.analyzer(axes)
        places = [(i, j) for i in range(terms) for j in range(width)]
        found = [resolved(period.at(large, i, j), analyzer) for i, j in places]
        if any(conditional_loads(x) for x in found):
            continue
        tiles = _tiles(found[0], period, axes, rows, pieces, MOST_VALUES[kind])
        tile = next((t for t in tiles if t.fits() and accept(t) and _is_wide(t, large, axes)), None)
        if tile is not None:
            return tile
    return None


def _streams(value: ir.Expr, tile: Tile) -> list[ir.TensorLoad]:
    """List the reads of weights: of the quantised ones, if there are any."""
    found = [x for x in loads(value) if tile.across in variables(x)]
    numbers = [x for x in found if str(x.ty.dtype).startswith(("int", "uint"))]
    return [x for x in numbers if tile.down in variables(x)] or found


def _tiles(
    value: ir.Expr, period: Tile, axes: Sequence[Axis], rows: int, pieces: int, most: int
) -> list[Tile]:
    """List tiles for weights that lie along the columns or the terms, the widest vectors first."""
    reads = [x for x in loads(value) if period.across in variables(x)]
    if not reads or any(loads(i) for x in loads(value) for i in x.indices):
        return []
    names = [period.across, period.down, *(a.var for a in axes)]

    def steps(found: Sequence[ir.TensorLoad], along: ir.Var) -> list[int | None]:
        moved = [stride(offset(x.source, x.indices), along, names) for x in found]
        return [None if step is None else constant(step) for step in moved]

    streams = _streams(value, period)
    largest = max((str(x.ty.dtype) for x in streams), key=lambda d: DataType(d).bits)
    is_quantised = has_integers(value)
    several = VECTORS if is_quantised or rows > 1 else 1
    columns, reduce = period.columns, period.reduce
    made = []
    if set(steps(streams, period.across)) == {1} and all(
        step is not None and 1 <= step <= period.width for step in steps(reads, period.across)
    ):
        for lanes in lanes_of(largest):
            width = period.width * lanes
            if rows * pieces * width <= most:
                made += [
                    Tile(columns, reduce, period.terms * n, width, False, n, lanes)
                    for n in dict.fromkeys((several, 1))
                ]
    elif set(steps(streams, period.down)) == {1}:
        for lanes in lanes_of(largest):
            terms = period.terms * lanes
            if terms * rows <= most:
                made += [
                    Tile(columns, reduce, terms, period.width * n, True, n, lanes)
                    for n in (VECTORS, 2, 1)
                    if rows * pieces * period.width * n <= most // 2
                ]
    return made


def _is_wide(tile: Tile, large: ir.Expr, axes: Sequence[Axis]) -> bool:
    """Whether vectors of the weights begin where they may."""
    analyzer = tile.analyzer(axes)
    for column in range(2 if tile.is_along and tile.width > 1 else 1):
        value = resolved(tile.at(large, 0, column), analyzer)
        for x in _streams(value, tile):
            place = analyzer.simplify(offset(x.source, x.indices))
            if not is_aligned(place, tile.lanes, analyzer):
                return False
    return True
