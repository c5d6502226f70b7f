"""The grid of FlashAttention: a block for every tile of queries of every head.

in order:   block = (head, tile);  causal ones begin with the last tiles of a head
causal:     block = (section, tile, head of the section), tiles from the last to the first

Later queries see more keys: blocks that take long start first, and short ones fill what they leave
at the end. The heads of a section are as many as have their keys and values in the last cache.
"""

from collections.abc import Callable

from tvm import ir, tirx

from ....core.tir.loops import ceildiv, constant, coordinates, index, product, threads
from .config import FlashMmaConfig
from .problem import FlashProblem

HALF_BYTES = 2  # of an element
SECTION_BYTES = 16 << 20  # of keys and values: in the last cache, besides what blocks before read

# Writes a block: what the axes of heads are, and its first query.
BlockOf = Callable[[dict[ir.Var, ir.Expr], ir.Expr], tirx.Stmt]


def query_blocks(problem: FlashProblem, config: FlashMmaConfig, write: BlockOf) -> tirx.Stmt:
    """Launch a block for every tile of queries; causal ones begin with the last queries."""
    pattern = problem.pattern
    extents = [a.extent for a in pattern.batch]
    blocks = ceildiv(index(problem.query.extent), config.block_m)
    order = _longest_first(problem, config)

    def body(number: ir.Expr) -> tirx.Stmt:
        if order is None:
            *batch, part = coordinates(number, [*extents, blocks])
            if problem.skips:
                part = blocks - 1 - part  # later rows see more keys: they start first
        else:
            per_head, shared, section = order
            sections = product([*extents, index(shared)]) // section
            ahead, part, inner = coordinates(number, [sections, per_head, section])
            *batch, group = coordinates(ahead * section + inner, [*extents, index(shared)])
            part = group * per_head + (per_head - 1 - part)
        where = {a.var: i for a, i in zip(pattern.batch, batch, strict=True)}
        return write(where, part * config.block_m)

    return threads("blockIdx.x", product([*extents, blocks]), body)


def _longest_first(problem: FlashProblem, config: FlashMmaConfig) -> tuple[int, int, int] | None:
    """Order blocks of causal attention; ``None`` where all take as long, or it is unknown.

    Returns
    -------
    tuple of int or None
        Tiles of a head; heads that share keys, whose queries lie one behind the other; heads of a
        section.
    """
    queries, keys = constant(problem.query.extent), constant(problem.pattern.key.extent)
    heads = constant(product([a.extent for a in problem.pattern.batch]))
    bounds = problem.score.bounds
    if not problem.skips or queries is None or keys is None or heads is None:
        return None
    if any(b.is_loaded or not b.is_upper or b.slope != 1 for b in bounds):
        return None
    period, *others = {queries if b.period is None else constant(b.period) for b in bounds}
    if others or period is None or (period % config.block_m and period != queries):
        return None
    shared = queries // period
    size = keys * (config.depth16 + config.column16) * HALF_BYTES
    fits = max(1, shared * SECTION_BYTES // size)
    section = max(n for n in range(1, heads * shared + 1) if heads * shared % n == 0 and n <= fits)
    return -(-period // config.block_m), shared, section
