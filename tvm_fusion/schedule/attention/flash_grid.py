"""The grid of FlashAttention: a block for every tile of queries of every head."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ...core.loops import ceildiv, coordinates, index, product, threads
from .flash_mma_config import FlashMmaConfig
from .flash_problem import FlashProblem

# Writes a block: what the axes of heads are, and its first query.
BlockOf = Callable[[dict[ir.Var, ir.Expr], ir.Expr], tirx.Stmt]


def query_blocks(problem: FlashProblem, config: FlashMmaConfig, write: BlockOf) -> tirx.Stmt:
    """Launch a block for every tile of queries; causal ones begin with the last queries.

    Parameters
    ----------
    problem : FlashProblem
        The attention.
    config : FlashMmaConfig
        Its tile of queries.
    write : callable
        Writes a block.
    """
    pattern = problem.pattern
    extents = [a.extent for a in pattern.batch]
    blocks = ceildiv(index(problem.query.extent), config.block_m)

    def body(number: ir.Expr) -> tirx.Stmt:
        *batch, part = coordinates(number, [*extents, blocks])
        if problem.skips:
            part = blocks - 1 - part  # later rows see more keys: they start first
        where = {a.var: i for a, i in zip(pattern.batch, batch, strict=True)}
        return write(where, part * config.block_m)

    return threads("blockIdx.x", product([*extents, blocks]), body)
