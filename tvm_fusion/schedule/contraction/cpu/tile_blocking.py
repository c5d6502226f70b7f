"""The default sizes of a GEMM on tile registers, and the design space around them.

A step of K is four products of 16 cycles that need 4 KB, more than the level-2 cache gives in that
time. So what a panel of B has of one pass stays in the level-1 cache, and A comes from the level-2
cache: passes over K are inside of the loop over panels, and their partial sums are of one panel.
"""

import itertools
import math
from collections.abc import Iterator

from ...cpu.tile_block import WORD_BYTES, fits, heights_of
from ...instructions.tiles import TILE_ROWS
from .blocking import COPY, MC, SYMBOLIC, Blocking, GemmProblem, Machine, norm_blocking

DOT, LOAD = 10, 12  # least cycles of a product, whatever its rows; cycles of a load of a tile
PANEL_BYTES = 1 << 15  # of a panel in a pass, in the level-1 cache
# Of the level-2 cache for A, beside B's panels and partial sums: on one core of a Xeon with AMX
# 1,024 x 1,024 x 1,024 takes 0.93 of the time with a half.
A_SHARE = 3 / 8
GRAIN = 1 << 20  # multiplications of words that are worth a task: a few microseconds
RATE = 150  # multiplications of words in a cycle: 256 at most
HALVES = 512  # multiplications of halves in a cycle
TASK = 1000  # cycles of a task beside its products: shapes of tiles, the first of all loads
READ, STREAM = 0.4, 1.0  # cycles of a word of A, and of B, from the level-3 cache
TASKS = 2  # per core, at most: more would read A and B more often
SYMBOLIC_ROWS = 2 * MC  # of a task, if M is symbolic
FEW = 2  # tiles of rows that use a panel from the level-2 cache as well
SLOWER = 1.3  # cycles of a word, over the fewest
LEAST_WORDS = 64  # of a pass


def default_tile_blocking(problem: GemmProblem, machine: Machine) -> Blocking:
    """Choose sizes by a model."""
    mr, vectors = min(_blocks(problem), key=lambda block: (_cost(problem, *block), -block[0]))
    nr = vectors * TILE_ROWS
    columns, batch = _panels(problem, nr), problem.batch or SYMBOLIC
    rows = problem.m or MC
    tiles = math.ceil(rows / mr)
    most = _most_rows(problem, machine)
    if problem.norm_k is not None:
        extents = rows, columns * nr, problem.norm_k, batch
        blocks, chunks = norm_blocking(*extents, machine, (mr, nr), HALVES)
    else:
        blocks, chunks = _divided(problem, machine, (mr, nr), (tiles, columns, batch))
    panels = math.ceil(columns / chunks)
    least = math.ceil(tiles / max(1, most // mr))
    block_m = math.ceil(tiles / max(blocks, least)) * mr
    if problem.m is None and problem.norm_k is None:
        block_m = max(block_m, min(SYMBOLIC_ROWS, most) // mr * mr)
    return Blocking(mr, nr, block_m, block_m, panels, _kc(problem, nr, block_m // mr))


def _divided(
    problem: GemmProblem, machine: Machine, tile: tuple[int, int], extents: tuple[int, int, int]
) -> tuple[int, int]:
    """Divide C among tasks so that equally busy threads read and copy little.

    Each thread takes as many consecutive tasks, which share columns.

    Parameters
    ----------
    extents
        Tiles of rows, panels of columns, and batches.

    Returns
    -------
    blocks, chunks : int
        Of rows and of columns, of a batch.
    """
    (mr, nr), (tiles, columns, batch) = tile, extents
    k = problem.k or MC
    work = batch * tiles * mr * columns * nr * k
    threads = min(machine.cores, max(1, work // GRAIN))
    fewest = math.ceil(tiles / max(1, _most_rows(problem, machine) // mr))
    most = TASKS * threads

    def cost(blocks: int, chunks: int) -> tuple[float, int]:
        tall, wide = math.ceil(tiles / blocks), math.ceil(columns / chunks)
        blocks, chunks = math.ceil(tiles / tall), math.ceil(columns / wide)
        tasks = batch * blocks * chunks
        each = math.ceil(tasks / threads)
        a = min(each, blocks) * tall * mr
        b = wide * nr * (each * COPY if problem.copies else math.ceil(each / blocks))
        products = tall * mr * wide * nr / RATE
        return each * (products + TASK / k) + READ * a + STREAM * b, tasks

    # Of fewer rows than MC, products would wait for B.
    more = max(fewest, min(tiles * mr // MC, fewest + most))
    ways = itertools.product(range(fewest, more + 1), range(1, min(columns, most) + 1))
    return min(ways, key=lambda way: cost(*way))


def tile_blockings(problem: GemmProblem, machine: Machine) -> Iterator[Blocking]:
    """Enumerate sizes that fit the registers and caches: what a tuner may measure."""
    fewest = min(_cost(problem, *block) for block in _blocks(problem))
    for mr, vectors in _blocks(problem):
        if _cost(problem, mr, vectors) > SLOWER * fewest:
            continue
        nr = vectors * TILE_ROWS
        tiles = math.ceil((problem.m or MC) / mr)
        most = max(mr, _most_rows(problem, machine) // mr * mr)
        heights = {min(most, math.ceil(tiles / 2**n) * mr) for n in range(tiles.bit_length())}
        chunks = {math.ceil(_panels(problem, nr) / 2**n) for n in range(9)}
        for block_m in sorted(heights, reverse=True):
            for panels in sorted(chunks, reverse=True):
                for kc in _depths(problem, nr):
                    yield Blocking(mr, nr, block_m, block_m, panels, kc)


def _blocks(problem: GemmProblem) -> list[tuple[int, int]]:
    """List rows of a block, and its columns of tiles."""
    found = []
    for vectors in problem.vectors:
        for rows in (r for r in (1, 2, 3) if fits(r, vectors)):
            most = rows * TILE_ROWS
            m = problem.m or most
            even = math.ceil(m / math.ceil(m / most))
            # Rows that are no whole blocks cost another shape of the tiles.
            found.append((even if m % even == 0 else most, vectors))
    return list(dict.fromkeys(found))


def _cost(problem: GemmProblem, mr: int, vectors: int) -> float:
    """Estimate the cycles of a step of K of all of C."""
    n = problem.n or SYMBOLIC * vectors * TILE_ROWS
    full, rest = divmod(n, vectors * TILE_ROWS)

    def row(height: int) -> float:
        heights = heights_of(height)

        def block(columns: int) -> float:
            products = columns * sum(max(DOT, h) for h in heights)
            return max(products, LOAD * (columns + len(heights)))

        return full * block(vectors) + (block(math.ceil(rest / TILE_ROWS)) if rest else 0)

    tall, last = divmod(problem.m or MC, mr)
    return tall * row(mr) + (row(last) if last else 0)


def _panels(problem: GemmProblem, nr: int) -> int:
    return math.ceil((problem.n or SYMBOLIC * nr) / nr)


def _most_rows(problem: GemmProblem, machine: Machine) -> int:
    """Count the rows of A that fit into its share of the level-2 cache, some at least."""
    return max(MC, int(machine.l2_bytes * A_SHARE) // (WORD_BYTES * (problem.k or PANEL_BYTES)))


def _kc(problem: GemmProblem, nr: int, tiles: int) -> int:
    """Divide K evenly into passes whose panel fits into the level-1 cache."""
    words, k = problem.tile_words or 1, problem.k

    most = PANEL_BYTES // (WORD_BYTES * nr) // words * words
    if k is None:
        return most
    if problem.whole_k or tiles <= FEW or k <= most:
        return k
    return math.ceil(k / words / math.ceil(k / most)) * words


def _depths(problem: GemmProblem, nr: int) -> list[int]:
    """List the K of a pass: by the level-1 cache, half of it, and all."""
    words, k = problem.tile_words or 1, problem.k
    usual = _kc(problem, nr, FEW + 1)
    if k is None:
        return [usual]
    half = math.ceil(usual / words / 2) * words
    return list(dict.fromkeys([usual, k, *([half] if LEAST_WORDS <= half < k else [])]))
