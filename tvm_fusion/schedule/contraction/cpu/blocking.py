"""The default sizes of tiles and blocks of a GEMM on a CPU, from its registers and caches.

The analytical model of Low, Igual, Smith and Quintana-Orti ("Analytical Modeling Is Enough for
High-Performance BLIS", ACM TOMS 2016): registers bound the tile, the level-2 cache bounds the rows
and the k that are reused. Deterministic; nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ....device import Device
from ...cpu.register_tile import VectorUnit
from ...cpu.schedule import CORES

LATENCY = 4  # cycles of a fused multiply-add
PER_CYCLE = 2  # fused multiply-adds, and loads
MAX_MR = 14
UNHIDDEN = 0.3  # cycles of a load, on average: tall tiles measured slower
MC = 128  # rows that stay in the level-2 cache with a panel; also M if symbolic
ENOUGH = 0.75  # of the tasks wanted, where more would copy the same panels again
FEW_ROWS = 4  # that take as long as reading a packed B, however wide its panels are
FEW_TILES = 4  # of rows, for which copying B costs as much as multiplying
LEAST_KC = 128  # of a pass, which loads and stores partial sums
NORMALIZE, READ = 0.8, 0.3  # cycles of an element of these, and of B in a far cache
COMPUTE, WIDEN = 4, 1  # cycles of a vector of A that tasks compute, and of B that they widen
COPY = 3  # cost of copying an element of B, relative to reading one of A
TASKS = 4  # per core, for balance
GRAIN = 1 << 17  # multiplications that are worth a task: a few microseconds
COPIED_MC = 3  # times MC rows of a task that copies its panels, if M is symbolic
SYMBOLIC = 8  # batches, or panels, if symbolic


def default_blocking(problem: GemmProblem, machine: Machine) -> Blocking:
    """Choose sizes by the model."""
    m, n, k = problem.m, problem.n, problem.k
    copies, cores, batch = problem.copies, machine.cores, problem.batch or SYMBOLIC
    widths = problem.vectors
    if not copies and m is not None and m <= FEW_ROWS:
        # That of many rows: functions of any number of rows share a B.
        widths = (_tile(None, n, machine.unit, widths)[1],)
    mr, columns = _tile(m, n, machine.unit, widths)
    nr = columns * machine.unit.lanes
    most = machine.panel // nr
    # One pass needs no partial sums. In several the next panel has room in the cache, too.
    passes = 1 if problem.whole_k or k is None or k <= most else math.ceil(2 * k / most)
    kc = most if k is None else math.ceil(k / passes)
    rows, columns = m or (COPIED_MC if copies else 1) * MC, math.ceil((n or SYMBOLIC * nr) / nr)
    work = rows * columns * nr * (k or kc) * batch
    wanted = min(TASKS * cores, max(1, work // GRAIN))
    tiles = math.ceil(rows / mr)
    around = batch * columns
    if problem.norm_k is not None:
        extents = rows, columns * nr, problem.norm_k, batch
        rate = PER_CYCLE * machine.unit.lanes
        blocks, chunks = norm_blocking(*extents, machine, (mr, nr), rate)
        panels = math.ceil(columns / chunks)
    elif problem.computes_a and k is not None and not copies:
        extents, lanes = (rows, columns * nr, k, batch), machine.unit.lanes
        made = COMPUTE / lanes
        costs = made, READ + WIDEN / lanes * problem.widens_b
        blocks, chunks = norm_blocking(*extents, machine, (mr, nr), PER_CYCLE * lanes, costs)
        panels = math.ceil(columns / chunks)
    elif k is not None and _by_rows(columns * nr * k, tiles, machine, copies):
        # Copies are made once for each core, tasks that copy nothing may be smaller.
        even = cores if wanted > 1 else 1
        blocks = even if copies else math.ceil(wanted / even) * even
        blocks, panels = min(tiles, max(blocks, math.ceil(tiles * mr / MC))), columns
    elif copies:
        blocks, panels = _copying(tiles, mr, columns, nr, batch, wanted)
    else:
        blocks = max(math.ceil(tiles * mr / MC), min(tiles, math.ceil(wanted / around)))
        panels = max(1, around * blocks // wanted)
    block = math.ceil(tiles / blocks) * mr
    parts = 1 if problem.norm_k else max(1, math.ceil((block - mr) / MC))
    part = math.ceil(block / (parts * mr)) * mr
    most = machine.copied if copies else machine.panel
    if passes > 1 or k is None:
        panels = min(panels, max(1, most // (parts * part * nr)))
    if copies:
        panels = min(panels, max(1, machine.copied // max(1, kc * nr)))
    panels = math.ceil(columns / math.ceil(columns / panels))
    if copies and block <= FEW_TILES * mr and not problem.whole_k:
        # Few rows: what was copied is read from a near cache right after.
        short = max(LEAST_KC, machine.panel // (4 * panels * nr))
        if k is None:
            kc = min(kc, short)
        elif k > 2 * short:
            kc = min(kc, math.ceil(k / math.ceil(k / short)))
    return Blocking(mr, nr, parts * part, part, panels, kc)


def norm_blocking(
    rows: int,
    columns: int,
    k: int,
    batch: int,
    machine: Machine,
    tile: tuple[int, int],
    rate: float,
    costs: tuple[float, float] = (NORMALIZE, READ),
) -> tuple[int, int]:
    """Choose blocks of rows, and chunks of panels, for tasks that make their rows of A.

    The choice takes the fewest cycles on equally busy cores: tasks that share rows make them
    again, blocks that share columns read B again.

    Parameters
    ----------
    batch
        Of GEMMs that share no columns.
    rate
        Multiplications in a cycle.
    costs
        Cycles of an element of A, and of B.

    Returns
    -------
    blocks, chunks : int
        As many tasks make each row as there are chunks.
    """
    height, width = tile
    tiles, panels = math.ceil(rows / height), math.ceil(columns / width)
    threads = min(machine.cores, max(1, rows * columns * k * batch // GRAIN))
    fewest = math.ceil(tiles / max(1, machine.normalized // (k * height)))
    best: tuple[float, int] | None = None
    found = fewest, 1
    for blocks in range(fewest, max(fewest, min(tiles, TASKS * threads)) + 1):
        tall = math.ceil(tiles / blocks) * height
        for chunks in range(1, min(panels, math.ceil(TASKS * threads / blocks)) + 1):
            wide = math.ceil(panels / chunks) * width
            sums = tall * wide / rate
            task = (sums + tall * costs[0] + wide * costs[1]) * k
            tasks = batch * blocks * chunks
            cost = math.ceil(tasks / threads) * task, tasks
            if best is None or cost < best:
                best, found = cost, (blocks, chunks)
    return found


def _by_rows(elements: int, tiles: int, machine: Machine, copies: bool) -> bool:
    """Whether tasks take whole rows of C: B is small, and M large."""
    many = machine.cores * (FEW_TILES if copies else 1)
    return elements <= machine.small_b and tiles >= many


def _copying(
    tiles: int, height: int, columns: int, width: int, batch: int, wanted: int
) -> tuple[int, int]:
    """Choose blocks of rows, and panels of a task: enough tasks that read and copy little.

    Each block of rows copies all panels, each chunk of panels reads all of A.
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
    """Choose mr, and nr in vectors, that take the fewest cycles for one k of all of C."""
    best: tuple[float, int, int] | None = None
    for vectors in widths:
        for height in range(1, min(MAX_MR, unit.rows(vectors)) + 1):
            cost = _split(m or MC, height, lambda rows, v=vectors: _columns(n, rows, v, unit))
            if best is None or cost < best[0] - 1e-9:
                best = cost, height, vectors
    if best is None:
        raise RuntimeError("no tile fits into the registers")
    _, height, vectors = best
    if m is not None:  # as many tiles, but of even height
        height = math.ceil(m / math.ceil(m / height))
    return height, vectors


def _columns(n: int | None, rows: int, vectors: int, unit: VectorUnit) -> float:
    full, rest = divmod(n or SYMBOLIC * vectors * unit.lanes, vectors * unit.lanes)
    cycles = full * cycles_of(rows, vectors)
    return cycles + (cycles_of(rows, math.ceil(rest / unit.lanes)) if rest else 0.0)


def _split(extent: int, size: int, cost) -> float:
    full, rest = divmod(extent, size)
    return full * cost(size) + (cost(rest) if rest else 0.0)


def cycles_of(rows: int, vectors: int) -> float:
    """Estimate the cycles of one k of a tile."""
    sums, loads = rows * vectors, rows + vectors
    return max(sums / PER_CYCLE, loads / PER_CYCLE, LATENCY) + UNHIDDEN * loads


# A GEMM and a CPU as blocking sees them, and a blocking: plain numbers.
MAX_VECTORS = 4
L2_BYTES = 1 << 20  # if unknown
L3_BYTES = 1 << 25  # if unknown
# What one core may fill of a level-2 cache that several share, whose size is told as a whole.
MAX_L2_BYTES = 1 << 21


@dataclass(frozen=True)
class Machine:
    """What the blocking of a GEMM reads of a CPU."""

    unit: VectorUnit  # registers, for the type of the accumulators
    cores: int = CORES  # threads that will run
    l2_bytes: int = L2_BYTES  # level-2 cache of one of them
    l3_bytes: int = L3_BYTES  # level-3 cache of all

    @classmethod
    def of(cls, device: Device, bits: int = 32) -> Machine:
        """Read a CPU, for accumulators of some bits."""
        l2_bytes = min(device.l2_bytes or L2_BYTES, MAX_L2_BYTES)
        unit, cores = VectorUnit.of(device).of_bits(bits), device.cores or CORES
        return cls(unit, cores, l2_bytes, device.l3_bytes or L3_BYTES)

    @property
    def panel(self) -> int:
        """Elements of a panel in one pass, and of a task's partial sums: a quarter of the cache."""
        return self.l2_bytes // 16

    @property
    def small_b(self) -> int:
        """Elements of a B that fits near every core: tasks take whole rows."""
        return 3 * self.l2_bytes // 64

    @property
    def copied(self) -> int:
        """Elements of the panels that a task copies, or of its partial sums: twice the cache."""
        return self.l2_bytes // 2

    @property
    def far_bytes(self) -> int:
        """Bytes of a tensor beyond which what one kernel wrote is far away in the next one.

        Weights, other operands, the kernels between and other processes share the cache.
        """
        return self.l3_bytes // 8

    @property
    def normalized(self) -> int:
        """Elements of the rows that a task normalizes: the cache."""
        return self.l2_bytes // 4


@dataclass(frozen=True)
class GemmProblem:
    """A GEMM as its blocking sees it."""

    # Extents; ``None`` if symbolic.
    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    whole_k: bool = False  # whether K cannot be split
    vectors: Collection[int] = range(1, MAX_VECTORS + 1)  # choices of nr, in vectors
    copies: bool = False  # whether each task copies its panels
    # Words of K in a step of tile registers, where they are used: K is in words then.
    tile_words: int | None = None
    # Elements of a row of A if a task normalizes the rows of its block: few tasks share rows then.
    norm_k: int | None = None
    # Whether a task computes its rows of A first, such as float32 of half types.
    computes_a: bool = False
    widens_b: bool = False  # whether panels of half types are converted to float32


@dataclass(frozen=True)
class Blocking:
    """The blocking of a GEMM."""

    # Rows and columns of a register tile; nr is whole vectors.
    mr: int
    nr: int
    block_m: int  # rows of C of one task: whole tiles
    mc: int  # rows of a task that multiply one panel after the other; a divisor of block_m
    panels: int  # panels of nr columns of one task
    # K of one pass; several passes keep partial sums in a buffer between them. On tile registers a
    # panel takes all passes before the next one.
    kc: int
