"""Sizes of tiles and blocks of a matrix product on a CPU, from its registers and caches.

The analytical model of Low, Igual, Smith and Quintana-Orti ("Analytical Modeling Is Enough for
High-Performance BLIS", ACM TOMS 2016): registers bound the tile, the level-2 cache bounds the rows
and terms that come round again. Deterministic; nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ..register_tile import VectorUnit

LATENCY = 4  # cycles of a fused multiply-add
PER_CYCLE = 2  # fused multiply-adds, and loads
MOST_ROWS = 14
MOST_VECTORS = 4
WAIT = 0.3  # cycles of a load that nothing hides, on average: tall tiles measured slower
BUFFER = 64 * 1024  # elements of a panel in one pass, and of a task's partial sums: 256 KB
ROWS = 128  # rows of a block whose number is not known, or large
COMPUTED = 128 * 1024  # elements of the rows that a task computes: half of a level-2 cache
COPYING_ROWS = 384  # if each block copies its panels: strided reads of memory are dear
TASKS = 4  # for each core, so that they end at about the same time
GRAIN = 1 << 17  # multiplications that are worth a task of their own: a few microseconds
MANY = 8  # batches, or panels, if symbolic
CORES = 8  # if unknown


@dataclass(frozen=True)
class Blocking:
    """How a product of M by N with K terms is cut.

    Attributes
    ----------
    height, width : int
        Rows and columns of a tile of sums; the width is whole vectors.
    block : int
        Rows of a block: whole tiles.
    panels : int
        Panels of columns that one task computes.
    terms : int
        Terms of one pass; more passes keep partial sums in a buffer between them.
    """

    height: int
    width: int
    block: int
    panels: int
    terms: int


def blocking(
    m: int | None,
    n: int | None,
    k: int | None,
    batch: int | None,
    unit: VectorUnit,
    cores: int | None,
    whole_terms: bool,
    vectors: Collection[int] = range(1, MOST_VECTORS + 1),
    most_rows: int = ROWS,
    computed: int | None = None,
) -> Blocking:
    """Choose sizes.

    Parameters
    ----------
    m, n, k, batch : int or None
        Extents; ``None`` if symbolic.
    unit : VectorUnit
        Registers.
    cores : int or None
        Threads that will run; ``None`` if unknown.
    whole_terms : bool
        Whether sums cannot be cut.
    vectors : collection of int
        Widths to choose from, in vectors.
    most_rows : int
        Of a block.
    computed : int, optional
        Elements of a row of the left operand, if a task computes the rows of its block: few tasks
        share rows then.
    """
    height, columns = _tile(m, n, unit, vectors)
    width = columns * unit.lanes
    most = BUFFER // width
    passes = 1 if whole_terms or k is None else math.ceil(k / most)
    terms = most if k is None else math.ceil(k / passes)
    rows, columns = m or ROWS, math.ceil((n or MANY * width) / width)
    work = rows * columns * width * (k or terms) * (batch or MANY)
    wanted = min(TASKS * (cores or CORES), max(1, work // GRAIN))
    around = (batch or MANY) * columns
    tiles = math.ceil(rows / height)
    least = math.ceil(wanted / around)
    if computed is not None:
        wanted, least = min(wanted, cores or CORES), 1
        most_rows = min(most_rows, max(height, COMPUTED // computed))
    blocks = max(math.ceil(rows / most_rows), min(tiles, least))
    block = math.ceil(tiles / blocks) * height
    panels = max(1, around * blocks // wanted)
    if passes > 1 or k is None:
        panels = min(panels, max(1, BUFFER // (block * width)))
    panels = math.ceil(columns / math.ceil(columns / panels))
    return Blocking(height, width, block, panels, terms)


def computed_rows(rows: int, terms: int, work: int, cores: int | None) -> tuple[int, int]:
    """Tell into how many blocks computed rows are cut, and how many tasks compute each block.

    Parameters
    ----------
    rows : int
        Of the product.
    terms : int
        Elements of a row.
    work : int
        Multiplications.
    cores : int or None
        Threads that will run; ``None`` if unknown.
    """
    wanted = min(cores or CORES, max(1, work // GRAIN))
    blocks = math.ceil(rows / min(ROWS, max(1, COMPUTED // terms)))
    return blocks, math.ceil(wanted / blocks)


def _tile(
    m: int | None, n: int | None, unit: VectorUnit, widths: Collection[int]
) -> tuple[int, int]:
    """Choose rows and vectors of the tile that takes the fewest cycles for a term of all sums."""
    best: tuple[float, int, int] | None = None
    for vectors in widths:
        for height in range(1, min(MOST_ROWS, unit.rows(vectors)) + 1):
            cost = _split(m or ROWS, height, lambda rows, v=vectors: _columns(n, rows, v, unit))
            if best is None or cost < best[0] - 1e-9:
                best = cost, height, vectors
    if best is None:
        raise RuntimeError("no tile fits into the registers")
    _, height, vectors = best
    if m is not None:  # as many tiles, but of even height
        height = math.ceil(m / math.ceil(m / height))
    return height, vectors


def _columns(n: int | None, rows: int, vectors: int, unit: VectorUnit) -> float:
    full, rest = divmod(n or MANY * vectors * unit.lanes, vectors * unit.lanes)
    cycles = full * _cycles(rows, vectors)
    return cycles + (_cycles(rows, math.ceil(rest / unit.lanes)) if rest else 0.0)


def _split(extent: int, size: int, cost) -> float:
    full, rest = divmod(extent, size)
    return full * cost(size) + (cost(rest) if rest else 0.0)


def _cycles(rows: int, vectors: int) -> float:
    """Cycles that one term of a tile takes."""
    sums, loads = rows * vectors, rows + vectors
    return max(sums / PER_CYCLE, loads / PER_CYCLE, LATENCY) + WAIT * loads
