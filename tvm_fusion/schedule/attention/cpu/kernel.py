"""FlashAttention on a CPU: one parallel loop over batches, heads and blocks of queries.

Softmax is computed online (Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018; Dao et al., "FlashAttention", NeurIPS 2022): scores are never more than a few rows by a tile
of keys:

parallel for batch, head, block of `block` queries:
    for tile of `keys` keys and values (sized for half of the L2 cache):
        pack k (transposed panels) and v of the tile
        for `rows` queries of the block:
            s = q @ k, in register tiles of rows x width
            (keys that a mask by position hides from all of them are left out)
            m_new = max(m_i, score(s)); rescale l_i, acc; p = exp(s - m_new); l_i += sum(p)
            acc += weight(p) @ v, in register tiles
    out = epilogue(acc / l_i)
"""

from __future__ import annotations

from tvm import ir, tirx

from ...._tvm.buffer import scratch
from ....core.expressions import load
from ....core.loops import block, ceildiv, constant, index, local, loop, sequence, substitute, when
from ....program.program import Program
from ...cpu.register_tile import accumulate, clear, each
from ..problem.online_softmax import float_
from ..problem.pattern import FLOAT, Pattern
from .config import CpuConfig
from .epilogue import Epilogue
from .pack_kv import pack_panels, pack_rows
from .softmax import OnlineSoftmax
from .visible_keys import VisibleKeys, Where, query_blocks


def attention_cpu(program: Program, pattern: Pattern, config: CpuConfig) -> tirx.PrimFunc:
    """Make the kernel of a configuration."""
    return _Kernel(pattern, config).func(program)


class _Kernel:
    def __init__(self, pattern: Pattern, config: CpuConfig) -> None:
        self._pattern, self._config = pattern, config
        query = pattern.query
        self._queries = index(1) if query is None else index(query.extent)
        self._count = index(pattern.key.extent)
        self._visible = VisibleKeys(pattern, config)

    def func(self, program: Program) -> tirx.PrimFunc:
        return query_blocks(program, self._pattern, self._queries, self._config.block, self._task)

    def _task(self, where: Where, first: ir.Expr) -> tirx.Stmt:
        """Compute a block of queries; fewer than the rows of a tile are computed one by one."""
        whole = self._block(where, first, self._config.rows)
        if constant(self._queries) is not None or self._config.rows == 1:
            return whole
        one = self._block(where, first, 1)
        return tirx.IfThenElse(self._queries >= self._config.rows, whole, one)

    def _block(self, where: Where, first: ir.Expr, rows: int) -> tirx.Stmt:
        config = self._config
        panels = [index(config.keys // config.width), index(config.depth), index(config.width)]
        keys = scratch(panels, FLOAT, "keys")
        values = scratch([index(config.keys), index(config.columns)], FLOAT, "values")
        slots = rows if config.single else config.block
        acc = scratch([index(slots), index(config.columns)], FLOAT, "acc")
        left = tirx.min(self._queries - first, index(config.block))
        if (size := constant(self._queries)) is not None and size % config.block == 0:
            left = index(config.block)
        tiles = ceildiv(left, rows)
        state = OnlineSoftmax(self._pattern, config, rows, slots)
        epilogue = Epilogue(self._pattern, config, acc, state.l_i)

        def begin(row: ir.Expr) -> ir.Expr:
            """Return the first query of a tile: the last tile moves back to fit."""
            return tirx.min(first + row * rows, self._queries - rows)

        def tile(number: ir.Expr) -> tirx.Stmt:
            start = number * config.keys
            count: ir.Expr | int = tirx.min(self._count - start, index(config.keys))
            if (size := constant(self._count)) is not None and size % config.keys == 0:
                count = config.keys
            if config.single and size is not None:
                count = size
            packed = self._packed(where, start, count, keys, values)

            def run(row: ir.Expr) -> tirx.Stmt:
                slot = index(0) if config.single else row * rows
                return self._tile(
                    state, epilogue, where, begin(row), slot, start, count, keys, values, acc
                )

            return sequence([*packed, loop("row", tiles, run)])

        stmts = [tile(index(0))]
        if not config.single:
            number = ceildiv(self._count, config.keys)
            if self._visible.skips:
                last = tirx.min(first + config.block, self._queries) - 1
                number = ceildiv(self._visible.end(where, first, last), config.keys)
            stmts = [state.start(acc), loop("tile", number, tile)]

            def end(row: ir.Expr) -> tirx.Stmt:
                return epilogue.rows(where, begin(row), row * rows, rows)

            stmts.append(loop("row", tiles, end))
        return block("queries", sequence(stmts), [keys, values, acc, *state.running])

    def _packed(
        self,
        where: Where,
        start: ir.Expr,
        count: ir.Expr | int,
        keys: ir.Var,
        values: ir.Var,
    ) -> list[tirx.Stmt]:
        """Pack a tile of keys and values."""
        pattern, config = self._pattern, self._config
        extent = constant(pattern.column.extent) or config.columns

        def k(key: ir.Expr, depth: ir.Expr) -> ir.Expr:
            at = {**where, pattern.key.var: start + key, pattern.depth.var: depth}
            return substitute(pattern.k, at)

        def v(key: ir.Expr, column: ir.Expr) -> ir.Expr:
            at = {**where, pattern.key.var: start + key, pattern.column.var: column}
            return substitute(pattern.v, at)

        return [
            pack_panels(config, keys, k, count),
            pack_rows(values, v, extent, config.width, count),
        ]

    def _tile(
        self,
        state: OnlineSoftmax,
        epilogue: Epilogue,
        where: Where,
        query: ir.Expr,
        slot: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
        keys: ir.Var,
        values: ir.Var,
        acc: ir.Var,
    ) -> tirx.Stmt:
        """Compute some rows against a tile of keys."""
        config, rows = self._config, state.rows
        seen: ir.Expr | None = None
        if self._visible.skips:
            seen, count = self._visible.of_tile(where, (query, query + (rows - 1)), start, count)
        queries = scratch([index(rows), index(config.depth)], FLOAT, "queries")
        # Rows a power of two apart would fall into the same cache sets.
        scores = scratch([index(rows), index(config.keys + config.lanes)], FLOAT, "scores")
        stmts = [state.pack(queries, where, query)]
        buffers = [queries, scores, *state.local]

        def product_of(panel: ir.Expr, offset: ir.Expr, columns: int) -> tirx.Stmt:
            first = panel * config.width + offset
            sums = local("sums", [rows, columns], FLOAT)
            parts = [
                clear(sums, float_(0)),
                accumulate(
                    sums,
                    config.depth,
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

        stmts.extend(_tiles(count, config, product_of))
        stmts.append(state.softmax(scores, acc, where, query, slot, start, count))

        def accumulate_values(first: int, columns: int) -> tirx.Stmt:
            sums = local("sums", [rows, columns], FLOAT)
            fresh = clear(sums, float_(0))
            if not config.single:
                fresh = each(
                    sums,
                    lambda i, lane: tirx.BufferStore(
                        sums, load(acc, [slot + i, first + lane]), [i, lane]
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
                        acc, load(sums, [i, lane]), [slot + i, first + lane]
                    ),
                ),
            ]
            return block("results", sequence(parts), [sums])

        done = 0
        while done < config.columns:
            columns = min(config.width, config.columns - done)
            stmts.append(accumulate_values(done, columns))
            done += columns
        if config.single:
            stmts.append(epilogue.rows(where, query, slot, rows))
        stmt = block("rows", sequence(stmts), buffers)
        # What is known of rows without a key is stored, too.
        return stmt if seen is None or config.single else when(seen, stmt)


def _tiles(count: ir.Expr | int, config: CpuConfig, make) -> list[tirx.Stmt]:
    """Cover columns by tiles of full width, then the remainder by whole vectors."""
    width, lanes = config.width, config.lanes
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
