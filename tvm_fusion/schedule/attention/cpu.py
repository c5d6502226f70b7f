"""Attention on a CPU: one parallel loop over batches, heads and blocks of queries.

A task packs keys and values a tile at a time and runs its queries past them, some rows at once:
scores, their softmax as it goes (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018; Dao et al., "FlashAttention", NeurIPS 2022), and the product with the values. Scores
are never more than a few rows by a tile of keys.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.target import Target

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    kernel,
    local,
    loop,
    product,
    sequence,
    tasks,
)
from ...program.program import Program
from ..register_tile import accumulate, clear, each
from .keys_cpu import pack_keys, pack_values
from .pattern import FLOAT, Pattern
from .results_cpu import Finish
from .rows_cpu import Rows, float_
from .sizes import Sizes


def attention_cpu(program: Program, pattern: Pattern, target: Target) -> tirx.PrimFunc:
    """Make the kernel."""
    return _Kernel(pattern, Sizes.of(pattern, target)).func(program)


class _Kernel:
    def __init__(self, pattern: Pattern, sizes: Sizes) -> None:
        self._pattern, self._sizes = pattern, sizes
        query = pattern.query
        self._queries = index(1) if query is None else index(query.extent)
        self._count = index(pattern.key.extent)

    def func(self, program: Program) -> tirx.PrimFunc:
        extents = [a.extent for a in self._pattern.batch]
        blocks = ceildiv(self._queries, self._sizes.block)

        def task(number: ir.Expr) -> tirx.Stmt:
            *batch, part = coordinates(number, [*extents, blocks])
            where = {a.var: i for a, i in zip(self._pattern.batch, batch, strict=True)}
            return self._task(where, part * self._sizes.block)

        return kernel(program, tasks(product([*extents, blocks]), task))

    def _task(self, where: dict[ir.Var, ir.Expr], first: ir.Expr) -> tirx.Stmt:
        """Run a block of queries; fewer than a tile has rows go one by one."""
        whole = self._block(where, first, self._sizes.rows)
        if constant(self._queries) is not None or self._sizes.rows == 1:
            return whole
        one = self._block(where, first, 1)
        return tirx.IfThenElse(self._queries >= self._sizes.rows, whole, one)

    def _block(self, where: dict[ir.Var, ir.Expr], first: ir.Expr, rows: int) -> tirx.Stmt:
        sizes = self._sizes
        panels = [index(sizes.keys // sizes.width), index(sizes.depth), index(sizes.width)]
        keys = scratch(panels, FLOAT, "keys")
        values = scratch([index(sizes.keys), index(sizes.columns)], FLOAT, "values")
        slots = rows if sizes.single else sizes.block
        out = scratch([index(slots), index(sizes.columns)], FLOAT, "out")
        left = tirx.min(self._queries - first, index(sizes.block))
        if (size := constant(self._queries)) is not None and size % sizes.block == 0:
            left = index(sizes.block)
        tiles = ceildiv(left, rows)
        state = Rows(self._pattern, sizes, rows, slots)
        finish = Finish(self._pattern, sizes, out, state.total)

        def begin(row: ir.Expr) -> ir.Expr:
            """First query of a tile: the last one moves back to fit, and computes some again."""
            return tirx.min(first + row * rows, self._queries - rows)

        def tile(number: ir.Expr) -> tirx.Stmt:
            start = number * sizes.keys
            count: ir.Expr | int = tirx.min(self._count - start, index(sizes.keys))
            if (size := constant(self._count)) is not None and size % sizes.keys == 0:
                count = sizes.keys
            if sizes.single and size is not None:
                count = size
            packed = [
                pack_keys(self._pattern, sizes, keys, where, start, count),
                pack_values(self._pattern, sizes, values, where, start, count),
            ]

            def run(row: ir.Expr) -> tirx.Stmt:
                slot = index(0) if sizes.single else row * rows
                return self._tile(
                    state, finish, where, begin(row), slot, start, count, keys, values, out
                )

            return sequence([*packed, loop("row", tiles, run)])

        stmts = [tile(index(0))]
        if not sizes.single:
            number = ceildiv(self._count, sizes.keys)
            stmts = [state.start(out), loop("tile", number, tile)]

            def end(row: ir.Expr) -> tirx.Stmt:
                return finish.rows(where, begin(row), row * rows, rows)

            stmts.append(loop("row", tiles, end))
        return block("queries", sequence(stmts), [keys, values, out, *state.kept])

    def _tile(
        self,
        state: Rows,
        finish: Finish,
        where: dict[ir.Var, ir.Expr],
        query: ir.Expr,
        slot: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
        keys: ir.Var,
        values: ir.Var,
        out: ir.Var,
    ) -> tirx.Stmt:
        """Take some rows past a tile of keys."""
        sizes, rows = self._sizes, state.rows
        queries = scratch([index(rows), index(sizes.depth)], FLOAT, "queries")
        # Rows a power of two apart would lie in the same lines of a cache.
        scores = scratch([index(rows), index(sizes.keys + sizes.lanes)], FLOAT, "scores")
        stmts = [state.pack(queries, where, query)]
        buffers = [queries, scores, *state.own]

        def product_of(panel: ir.Expr, offset: ir.Expr, columns: int) -> tirx.Stmt:
            first = panel * sizes.width + offset
            sums = local("sums", [rows, columns], FLOAT)
            parts = [
                clear(sums, float_(0)),
                accumulate(
                    sums,
                    sizes.depth,
                    lambda i, k: load(queries, [i, k]),
                    lambda k, lane: load(keys, [panel, k, offset + lane]),
                ),
                each(
                    sums,
                    lambda i, lane: tirx.BufferStore(
                        scores, load(sums, [i, lane]), [i, first + lane]
                    ),
                ),
            ]
            return block("scores", sequence(parts), [sums])

        stmts.extend(_tiles(count, sizes, product_of))
        stmts.append(state.softmax(scores, out, where, query, slot, start, count))

        def weigh(first: int, columns: int) -> tirx.Stmt:
            sums = local("sums", [rows, columns], FLOAT)
            fresh = clear(sums, float_(0))
            if not sizes.single:
                fresh = each(
                    sums,
                    lambda i, lane: tirx.BufferStore(
                        sums, load(out, [slot + i, first + lane]), [i, lane]
                    ),
                )
            parts = [
                fresh,
                accumulate(
                    sums,
                    count,
                    lambda i, k: load(scores, [i, k]),
                    lambda k, lane: load(values, [k, first + lane]),
                ),
                each(
                    sums,
                    lambda i, lane: tirx.BufferStore(
                        out, load(sums, [i, lane]), [slot + i, first + lane]
                    ),
                ),
            ]
            return block("results", sequence(parts), [sums])

        done = 0
        while done < sizes.columns:
            columns = min(sizes.width, sizes.columns - done)
            stmts.append(weigh(done, columns))
            done += columns
        if sizes.single:
            stmts.append(finish.rows(where, query, slot, rows))
        return block("rows", sequence(stmts), buffers)


def _tiles(count: ir.Expr | int, sizes: Sizes, make) -> list[tirx.Stmt]:
    """Cover columns by tiles of full width, then by what is left in whole vectors."""
    width, lanes = sizes.width, sizes.lanes
    size = constant(count)
    zero = index(0)
    if size is not None:
        stmts = [loop("part", size // width, lambda n: make(n, zero, width))]
        if size % width:
            rest = -(-(size % width) // lanes) * lanes
            stmts.append(make(index(size // width), zero, rest))
        return stmts
    whole = tirx.floordiv(count, index(width))
    vectors = ceildiv(tirx.floormod(count, index(width)), lanes)
    return [
        loop("part", whole, lambda n: make(n, zero, width)),
        loop("part", vectors, lambda n: make(whole, n * lanes, lanes)),
    ]
