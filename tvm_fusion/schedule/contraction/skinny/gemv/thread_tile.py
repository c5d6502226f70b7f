"""The tile of B that one thread of a skinny GEMM loads at a time: a few k of a few columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tvm import DataType, ir, sym, tirx

from .....core.tir.expressions import loads, variables
from .....core.tir.loops import constant, coordinates, index, substitute
from .....program.stage import Axis
from ....gpu.memory.vector_loads import resolved, vector_sizes
from ....index.address import conditional_loads, is_aligned, offset, stride
from ...dequantize.float32 import has_integers

PERIODS = ((1, 1), (2, 1), (1, 2))  # (k, n) after which packed weights repeat
VECTORS = 4  # of a tile of B, where k or n share scales or elements of A
# Accumulators, or elements of A, in registers. LLVM for AMD hoists loads of more rows: with 128
# accumulators a thread took 319 registers on gfx942, 64 of them spilled.
MAX_VALUES = {"cuda": 128, "rocm": 64}


@dataclass(frozen=True, eq=False)
class ThreadTile:
    """A tile of B, ``[k, n]``."""

    # Axes of N and of K; the tile lies in the last of each.
    n_axes: tuple[Axis, ...]
    k_axes: tuple[Axis, ...]
    # Extents of the tile.
    k: int
    n: int
    is_k_contiguous: bool = False  # whether vectors lie along K (B column-major), not along N
    vectors: int = 1  # vector loads of a tile
    vector_size: int = 1  # elements of a vector

    @cached_property
    def n_tile(self) -> ir.Var:
        """Stands for the tile's number along the last axis of N."""
        return tirx.Var("tile_column", "int64")

    @cached_property
    def k_tile(self) -> ir.Var:
        """Stands for the tile's number along K."""
        return tirx.Var("tile_term", "int64")

    def at(self, expr: ir.Expr, k: int, n: int) -> ir.Expr:
        """Express A or B at an element of the tile."""
        extents = [a.extent for a in self.k_axes]
        along = coordinates(self.k_tile * self.k + k, extents)
        place = {a.var: p for a, p in zip(self.k_axes, along, strict=True)}
        place[self.n_axes[-1].var] = self.n_tile * self.n + n
        return substitute(expr, place)

    def divides(self) -> bool:
        """Whether the axes' extents are multiples of the tile's."""
        extents = (self.k_axes[-1].extent, self.k), (self.n_axes[-1].extent, self.n)
        return all(size == 1 or _is_multiple(constant(e), size) for e, size in extents)

    def analyzer(self, axes: Sequence[Axis]) -> sym.Analyzer:
        """Make an analyzer that knows the ranges of axes and of the tile's numbers."""
        analyzer = sym.Analyzer()
        counts = [(a.var, constant(a.extent)) for a in axes]
        last = constant(self.n_axes[-1].extent)
        counts.append((self.n_tile, None if last is None else last // self.n))
        for variable, count in counts:
            if count is not None:
                analyzer.bind(variable, ir.Range.from_min_extent(index(0), index(count)))
        return analyzer


def fewer_columns(tile: ThreadTile) -> list[ThreadTile]:
    """List the tile and those of fewer columns, where each column is a vector along K."""
    if not tile.is_k_contiguous:
        return [tile]
    period, counts = tile.n // tile.vectors, [tile.vectors]
    while counts[-1] % 2 == 0:
        counts.append(counts[-1] // 2)
    return [replace(tile, n=period * count, vectors=count) for count in counts]


def _is_multiple(extent: int | None, size: int) -> bool:
    return extent is not None and extent % size == 0


def thread_tile(
    b: ir.Expr,
    n_axes: tuple[Axis, ...],
    k_axes: tuple[Axis, ...],
    axes: Sequence[Axis],
    m: int,
    parts: int,
    kind: str,
    accept: Callable[[ThreadTile], bool] = lambda _: True,
) -> ThreadTile | None:
    """Choose a tile whose vector loads of B are as wide as possible.

    Parameters
    ----------
    n_axes, k_axes, axes
        Axes of N, of K, and all.
    m, parts
        Each column has ``m * parts`` accumulators.

    Returns
    -------
    ThreadTile or None
        ``None`` if B is contiguous neither along N nor along K.
    """
    for k, n in PERIODS:
        period = ThreadTile(n_axes, k_axes, k, n)
        if not period.divides():
            continue
        analyzer = period.analyzer(axes)
        places = [(i, j) for i in range(k) for j in range(n)]
        found = [resolved(period.at(b, i, j), analyzer) for i, j in places]
        if any(conditional_loads(x) for x in found):
            continue
        for tile in _candidates(found[0], period, axes, m, parts, MAX_VALUES[kind]):
            if tile.divides() and accept(tile) and _is_aligned(tile, b, axes):
                return tile
    return None


def _weights(value: ir.Expr, tile: ThreadTile) -> list[ir.TensorLoad]:
    """List the loads of weights: of the quantized ones, if there are any."""
    found = [x for x in loads(value) if tile.n_tile in variables(x)]
    quantized = [x for x in found if str(x.ty.dtype).startswith(("int", "uint"))]
    return [x for x in quantized if tile.k_tile in variables(x)] or found


def _candidates(
    value: ir.Expr, period: ThreadTile, axes: Sequence[Axis], m: int, parts: int, most: int
) -> list[ThreadTile]:
    """List tiles for weights that are contiguous along N or K, the widest vectors first."""
    reads = [x for x in loads(value) if period.n_tile in variables(x)]
    if not reads or any(loads(i) for x in loads(value) for i in x.indices):
        return []
    names = [period.n_tile, period.k_tile, *(a.var for a in axes)]

    def strides(found: Sequence[ir.TensorLoad], along: ir.Var) -> list[int | None]:
        moved = [stride(offset(x.source, x.indices), along, names) for x in found]
        return [None if step is None else constant(step) for step in moved]

    weights = _weights(value, period)
    widest = max((str(x.ty.dtype) for x in weights), key=lambda d: DataType(d).bits)
    vectors = VECTORS if has_integers(value) or m > 1 else 1
    n_axes, k_axes = period.n_axes, period.k_axes
    made = []
    if set(strides(weights, period.n_tile)) == {1} and all(
        step is not None and 1 <= step <= period.n for step in strides(reads, period.n_tile)
    ):
        for size in vector_sizes(widest):
            n = period.n * size
            if m * parts * n <= most:
                made += [
                    ThreadTile(n_axes, k_axes, period.k * count, n, False, count, size)
                    for count in dict.fromkeys((vectors, 1))
                ]
    elif set(strides(weights, period.k_tile)) == {1}:
        for size in vector_sizes(widest):
            k = period.k * size
            if k * m <= most:
                made += [
                    ThreadTile(n_axes, k_axes, k, period.n * count, True, count, size)
                    for count in (VECTORS, 2, 1)
                    if m * parts * period.n * count <= most // 2
                ]
    return made


def _is_aligned(tile: ThreadTile, b: ir.Expr, axes: Sequence[Axis]) -> bool:
    """Whether vectors of B start at multiples of their size."""
    analyzer = tile.analyzer(axes)
    for n in range(2 if tile.is_k_contiguous and tile.n > 1 else 1):
        value = resolved(tile.at(b, 0, n), analyzer)
        for x in _weights(value, tile):
            place = analyzer.simplify(offset(x.source, x.indices))
            if not is_aligned(place, tile.vector_size, analyzer):
                return False
    return True
