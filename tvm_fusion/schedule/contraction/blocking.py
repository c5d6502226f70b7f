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
ROWS = 128  # rows that stay in the level-2 cache beside a panel; also if their number is unknown
ENOUGH = 0.75  # of the tasks wanted, if more would copy the same panels
FEW = 4  # tiles of rows, for which copying costs as much as multiplying
SHORT_TERMS = 128  # of a pass: sums come and go beside them
COMPUTED = 256 * 1024  # elements of the rows that a task computes: 1 MB
COMPUTE, READ = 0.8, 0.3  # cycles of an element of them, and of the right factor in a far cache
NEAR = 48 * 1024  # elements of a right factor near every core: its tasks share no line of results
CHUNK = 512 * 1024  # elements of the panels that a task copies, or of its partial sums: 2 MB
COPY = 3  # cost of an element of a panel that is copied, beside one of the rows that is read
TASKS = 4  # for each core, so that they end at about the same time
GRAIN = 1 << 17  # multiplications that are worth a task of their own: a few microseconds
COPIED = 3  # times as many rows of a task, if unknown, that copies its panels
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
        Rows that one task computes: whole tiles.
    rows : int
        Rows of a task that meet one panel after the other; a divisor of the block.
    panels : int
        Panels of columns that one task computes.
    terms : int
        Terms of one pass; more passes keep partial sums in a buffer between them.
    """

    height: int
    width: int
    block: int
    rows: int
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
    copies: bool = False,
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
    copies : bool
        Whether each task copies its panels.
    computed : int, optional
        Elements of a row of the left factor, if a task computes the rows of its block: few tasks
        share rows then.
    """
    height, columns = _tile(m, n, unit, vectors)
    width = columns * unit.lanes
    most = BUFFER // width
    # One pass needs no partial sums. In several the next panel has room in the cache, too.
    passes = 1 if whole_terms or k is None or k <= most else math.ceil(2 * k / most)
    terms = most if k is None else math.ceil(k / passes)
    rows, columns = m or (COPIED if copies else 1) * ROWS, math.ceil((n or MANY * width) / width)
    work = rows * columns * width * (k or terms) * (batch or MANY)
    wanted = min(TASKS * (cores or CORES), max(1, work // GRAIN))
    tiles = math.ceil(rows / height)
    around = (batch or MANY) * columns
    if computed is not None:
        extents = rows, columns * width, computed, batch or MANY
        blocks, chunks = _computing(*extents, unit, cores, (height, width))
        panels = math.ceil(columns / chunks)
    elif k is not None and _by_rows(columns * width * k, tiles, cores or CORES, copies):
        # Copies are made once for each core, tasks that copy nothing may be smaller.
        even = (cores or CORES) if wanted > 1 else 1
        blocks = even if copies else math.ceil(wanted / even) * even
        blocks, panels = min(tiles, max(blocks, math.ceil(tiles * height / ROWS))), columns
    elif copies:
        blocks, panels = _copying(tiles, height, columns, width, batch or MANY, wanted)
    else:
        blocks = max(math.ceil(tiles * height / ROWS), min(tiles, math.ceil(wanted / around)))
        panels = max(1, around * blocks // wanted)
    block = math.ceil(tiles / blocks) * height
    parts = 1 if computed else max(1, math.ceil((block - height) / ROWS))
    part = math.ceil(block / (parts * height)) * height
    most = CHUNK if copies else BUFFER
    if passes > 1 or k is None:
        panels = min(panels, max(1, most // (parts * part * width)))
    if copies:
        panels = min(panels, max(1, CHUNK // (terms * width)))
    panels = math.ceil(columns / math.ceil(columns / panels))
    if copies and block <= FEW * height and not whole_terms:
        # Few rows: what was copied is read from a near cache right after.
        short = max(SHORT_TERMS, BUFFER // (4 * panels * width))
        if k is None:
            terms = min(terms, short)
        elif k > 2 * short:
            terms = min(terms, math.ceil(k / math.ceil(k / short)))
    return Blocking(height, width, parts * part, part, panels, terms)


def computing(
    rows: int, columns: int, terms: int, batch: int, unit: VectorUnit, cores: int | None
) -> tuple[int, int]:
    """Choose blocks of rows, and chunks of panels, for tasks that compute the rows of their block.

    What takes the fewest cycles from the first task to the last one, on cores that are equally
    busy: tasks that share rows compute them again, blocks that share columns read them again.

    Parameters
    ----------
    rows, columns, terms : int
        Extents.
    batch : int
        Of products that share no columns.
    unit : VectorUnit
        Registers.
    cores : int or None
        Threads that will run; ``None`` if unknown.

    Returns
    -------
    blocks, chunks : int
        As many tasks compute each row as there are chunks.
    """
    height, vectors = _tile(rows, columns, unit, range(1, MOST_VECTORS + 1))
    tile = height, vectors * unit.lanes
    return _computing(rows, columns, terms, batch, unit, cores, tile)


def _computing(
    rows: int,
    columns: int,
    terms: int,
    batch: int,
    unit: VectorUnit,
    cores: int | None,
    tile: tuple[int, int],
) -> tuple[int, int]:
    height, width = tile
    tiles, panels = math.ceil(rows / height), math.ceil(columns / width)
    threads = min(cores or CORES, max(1, rows * columns * terms * batch // GRAIN))
    fewest = math.ceil(tiles / max(1, COMPUTED // (terms * height)))
    best: tuple[float, int] | None = None
    found = fewest, 1
    for blocks in range(fewest, max(fewest, min(tiles, TASKS * threads)) + 1):
        tall = math.ceil(tiles / blocks) * height
        for chunks in range(1, min(panels, math.ceil(TASKS * threads / blocks)) + 1):
            wide = math.ceil(panels / chunks) * width
            sums = tall * wide / (PER_CYCLE * unit.lanes)
            task = (sums + tall * COMPUTE + wide * READ) * terms
            tasks = batch * blocks * chunks
            cost = math.ceil(tasks / threads) * task, tasks
            if best is None or cost < best:
                best, found = cost, (blocks, chunks)
    return found


def _by_rows(elements: int, tiles: int, cores: int, copies: bool) -> bool:
    """Whether tasks take whole rows: the right factor is small, and the rows are many."""
    return elements <= NEAR and tiles >= cores * (FEW if copies else 1)


def _copying(
    tiles: int, height: int, columns: int, width: int, batch: int, wanted: int
) -> tuple[int, int]:
    """Choose blocks of rows, and panels of a task: enough tasks that read and copy little.

    Each block copies all panels, each chunk of panels reads all rows.
    """
    best: tuple[float, float] | None = None
    found = 1, columns
    for blocks in range(1, min(tiles, wanted) + 1):
        panels = math.ceil(columns / min(columns, math.ceil(wanted / (batch * blocks))))
        chunks = math.ceil(columns / panels)
        missing = max(0, ENOUGH * wanted - batch * blocks * chunks)
        cost = missing, blocks * columns * width * COPY + chunks * tiles * height
        if best is None or cost < best:
            best, found = cost, (blocks, panels)
    return found


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
