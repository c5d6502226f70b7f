"""FlashAttention on a CPU: one parallel loop over batches, heads and blocks of queries.

Softmax is computed online (Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018; Dao et al., "FlashAttention", NeurIPS 2022): scores are never more than a few rows by a tile
of keys:

parallel for batch, head, block of `block` queries:
    for tile of `keys` keys and values (sized for half of the L2 cache):
        pack k and v of the tile
        for `rows` queries of the block:
            s = q @ k, in register tiles
            (keys that a mask by position hides from all of them are left out)
            m_new = max(m_i, score(s)); rescale l_i, acc; p = exp(s - m_new); l_i += sum(p)
            acc += weight(p) @ v, in register tiles
    out = epilogue(acc / l_i)

Register tiles are of vectors, or AMX's (``products``, ``tile_products``).
"""

from tvm import ir, sym, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import variables
from ....core.tir.loops import block, ceildiv, constant, index, loop, sequence, when
from ....program.program import Program
from ..problem.pattern import FLOAT, Pattern
from .config import CpuConfig
from .epilogue import Epilogue
from .products import Products, VectorProducts
from .softmax import OnlineSoftmax
from .tile_config import TileAttentionConfig
from .tile_products import TileProducts
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
        if _is_least(self._config.rows, self._queries):
            return whole
        one = self._block(where, first, 1)
        return tirx.IfThenElse(self._queries >= self._config.rows, whole, one)

    def _block(self, where: Where, first: ir.Expr, rows: int) -> tirx.Stmt:
        config = self._config
        slots = rows if config.single else config.block
        acc = scratch([index(slots), index(config.columns)], FLOAT, "acc")
        uses_tiles = isinstance(config, TileAttentionConfig)
        products = (TileProducts if uses_tiles else VectorProducts)(self._pattern, config, rows)
        left = tirx.min(self._queries - first, index(config.block))
        if (size := constant(self._queries)) is not None and size % config.block == 0:
            left = index(config.block)
        tiles = ceildiv(left, rows)
        state = OnlineSoftmax(self._pattern, config, rows, slots)
        epilogue = Epilogue(self._pattern, config, acc, state.m_i, state.l_i)

        def begin(row: ir.Expr) -> ir.Expr:
            """Return the first query of a tile: the last tile moves back to fit."""
            return tirx.min(first + row * rows, self._queries - rows)

        # The last tile may begin in front of the block: there limits may be higher than in it.
        seen_by = tirx.min(first, self._queries - rows), left + first - 1

        def tile(number: ir.Expr) -> tirx.Stmt:
            start = number * config.keys
            count: ir.Expr | int = tirx.min(self._count - start, index(config.keys))
            if (size := constant(self._count)) is not None and size % config.keys == 0:
                count = config.keys
            if config.single and size is not None:
                count = size

            def run(row: ir.Expr) -> tirx.Stmt:
                slot = index(0) if config.single else row * rows
                return self._tile(
                    products, state, epilogue, where, begin(row), slot, start, count, acc
                )

            packed = count
            if self._visible.skips:
                _, packed = self._visible.of_tile(where, seen_by, start, count)
            return sequence([*products.pack(where, start, packed), loop("row", tiles, run)])

        stmts = [tile(index(0))]
        if not config.single:
            number = ceildiv(self._count, config.keys)
            if self._visible.skips:
                number = ceildiv(self._visible.end(where, *seen_by), config.keys)
            stmts = [state.start(acc), loop("tile", number, tile)]

            def end(row: ir.Expr) -> tirx.Stmt:
                return epilogue.rows(where, begin(row), row * rows, rows)

            stmts.append(loop("row", tiles, end))
        whole = sequence([*products.begin(acc), *stmts, *products.end()])
        return block("queries", whole, [*products.buffers, acc, *state.running])

    def _tile(
        self,
        products: Products,
        state: OnlineSoftmax,
        epilogue: Epilogue,
        where: Where,
        query: ir.Expr,
        slot: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
        acc: ir.Var,
    ) -> tirx.Stmt:
        """Compute some rows against a tile of keys."""
        config, rows = self._config, state.rows
        seen: ir.Expr | None = None
        if self._visible.skips:
            seen, count = self._visible.of_tile(where, (query, query + (rows - 1)), start, count)
        stmts = [
            *products.load_queries(where, query),
            *products.multiply_keys(count),
            state.softmax(products.scores, acc, where, query, slot, start, count),
            *products.multiply_values(acc, slot, count),
        ]
        if config.single:
            stmts.append(epilogue.rows(where, query, slot, rows))
        stmt = block("rows", sequence(stmts), [*products.row_buffers, *state.local])
        # What is known of rows without a key is stored, too.
        return stmt if seen is None or config.single else when(seen, stmt)


def _is_least(rows: int, queries: ir.Expr) -> bool:
    """Whether there are so many queries in any task: an extent of zero has none.

    Elsewhere TVM's simplifier would conclude that the extent is zero, and divide by it.
    """
    analyzer = sym.Analyzer()
    for var in variables(queries):
        analyzer.bind(var, ir.Range(index(1), index(1 << 31)))
    return constant(queries) is not None or bool(analyzer.can_prove(queries >= rows))
