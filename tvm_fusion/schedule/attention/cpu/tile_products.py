"""Both products of attention on tile registers (AMX), in a half type with sums in float32.

    keys[panel][word of depth][key]         two elements of a key in a word: words are transposed
    values[word of keys][column]            two values in a word: they are interleaved
    queries, weights                        rows of A as they are, rounded

What a step has beyond the last key or element is zero in both operands, since zero times what
memory happens to hold may be NaN.
"""

from collections.abc import Callable

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import block, constant, index, local, loop, sequence, vectorized
from ...contraction.cpu.dot_products import uncast
from ...cpu.tile_block import WORD_BYTES, TileBlock, heights_of
from ...cpu.transpose import adjacent, transposed
from ...cpu.vector_loops import by_vectors, over_vectors
from ...instructions.table import newest
from ...instructions.tiles import (
    TILE_ROW_BYTES,
    TILE_ROWS,
    TileAddress,
    configure,
    keep_extents,
    release,
    tile_config,
)
from ...math.half_math import HALF_TYPES
from ...math.vector_math import vector_math
from ..problem.pattern import FLOAT, Pattern
from .config import CpuConfig
from .products import Products, over_panels
from .softmax import resolved
from .visible_keys import Where

GROUP = 2  # elements of a word
STEP = TILE_ROWS * GROUP  # of depth, or keys, in a step of a product
WORD = "int32"
Element = Callable[[ir.Expr], ir.Expr]


class TileProducts(Products):
    """Products by blocks of tile registers."""

    def __init__(self, pattern: Pattern, config: CpuConfig, rows: int) -> None:
        super().__init__(pattern, config, rows)
        self._dtype = dtype = pattern.operand_dtypes[0]
        self._steps = -(-config.depth // STEP)
        depth, keys = self._steps * STEP, -(-config.keys // STEP) * STEP
        panels = [config.keys // TILE_ROWS, depth // GROUP, TILE_ROWS]
        self._keys = scratch(list(map(index, panels)), WORD, "keys")
        values = [keys // GROUP, config.columns]
        self._values = scratch(list(map(index, values)), WORD, "values")
        # Rows a power of two apart would fall into the same cache sets.
        self._queries = scratch([index(rows), index(depth + STEP)], dtype, "queries")
        self._weights = scratch([index(rows), index(keys + STEP)], dtype, "weights")
        # TVM 0.27 makes a buffer longer where it cannot bound what is stored: up to a panel
        # and a vector behind an unknown number of keys; tiles would be at other distances then.
        width = config.keys + config.width + config.lanes
        self.scores = scratch([index(rows), index(width)], FLOAT, "scores")
        self._memory = tile_config()
        self.buffers = [self._keys, self._values, self._memory]
        self.row_buffers = [self._queries, self.scores, self._weights]
        row = newest("amx", dtype, dtype)
        self._tiles = TileBlock(row, heights_of(rows), config.vectors)

    def begin(self, acc: ir.Var) -> list[tirx.Stmt]:
        """Shape the tiles, and keep the extents of what they are loaded from."""
        kept = [keep_extents(buffer) for buffer in (self._keys, self._values, acc)]
        return [*kept, configure(self._memory, self._tiles.shapes())]

    def end(self) -> list[tirx.Stmt]:
        """Give up the tiles."""
        return [release()]

    def pack(self, where: Where, start: ir.Expr, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Transpose words of keys, and interleave values."""
        return [self._pack_keys(where, start, count), self._pack_values(where, start, count)]

    def _pack_keys(self, where: Where, start: ir.Expr, count: ir.Expr | int) -> tirx.Stmt:
        def square(panel: ir.Expr, step: int, is_whole: bool) -> tirx.Stmt:
            words = local("square", [TILE_ROWS, STEP], self._dtype)
            elements = min(STEP, self.config.depth - step * STEP)

            def row(i: ir.Expr) -> tirx.Stmt:
                key = panel * TILE_ROWS + i
                read = self._rounded(
                    elements,
                    lambda d: self.k(where, start + key, d + step * STEP),
                    words,
                    i,
                )
                if is_whole:
                    return sequence([read, _zeros(words, [i], elements, STEP)])
                rest = _zeros(words, [i], elements, STEP)
                missing = _zeros(words, [i], 0, STEP)
                return tirx.IfThenElse(key < index(count), sequence([read, rest]), missing)

            every = adjacent(0, STEP)
            rows = [
                tirx.reinterpret(f"{WORD}x{TILE_ROWS}", load(words, [index(i), every]))
                for i in range(TILE_ROWS)
            ]
            turned = transposed(
                rows,
                lambda word, vector: tirx.BufferStore(
                    self._keys,
                    vector,
                    [panel, index(step * TILE_ROWS + word), adjacent(0, TILE_ROWS)],
                ),
            )
            kind = tirx.ForKind.UNROLLED if is_whole else tirx.ForKind.SERIAL
            return block("square", sequence([loop("i", TILE_ROWS, row, kind), turned]), [words])

        def panel(number: ir.Expr, is_whole: bool) -> tirx.Stmt:
            return sequence([square(number, step, is_whole) for step in range(self._steps)])

        whole = tirx.floordiv(index(count), index(TILE_ROWS))
        rest = tirx.floormod(index(count), index(TILE_ROWS))
        return sequence(
            [
                loop("panel", whole, lambda n: panel(n, True)),
                _if_any(rest, panel(whole, False)),
            ]
        )

    def _pack_values(self, where: Where, start: ir.Expr, count: ir.Expr | int) -> tirx.Stmt:
        elements = self.elements

        def words(pair: ir.Expr, many: int) -> tirx.Stmt:
            def run(first: ir.Expr, width: int) -> tirx.Stmt:
                def store(lane: ir.Expr) -> tirx.Stmt:
                    word = tirx.const(0, WORD)
                    for n in range(many):
                        v = self.v(where, start + pair * GROUP + n, first + lane)
                        bits = tirx.reinterpret("uint16", self._halved(vector_math(v, lane)))
                        part = tirx.Cast(WORD, bits)
                        word = part if n == 0 else word | part << tirx.const(16, WORD)
                    return tirx.BufferStore(self._values, word, [pair, first + lane])

                return vectorized(width, store)

            read = over_vectors(elements, TILE_ROWS, run)
            return sequence([read, _zeros(self._values, [pair], elements, self.config.columns)])

        size = index(count)
        pairs, rest = tirx.floordiv(size, index(GROUP)), tirx.floormod(size, index(GROUP))
        first = pairs + rest
        end = tirx.floordiv(size + (STEP - 1), index(STEP)) * TILE_ROWS

        def empty(n: ir.Expr) -> tirx.Stmt:
            return _zeros(self._values, [first + n], 0, self.config.columns)

        return sequence(
            [
                loop("pair", pairs, lambda n: words(n, GROUP)),
                _if_any(rest, words(pairs, 1)),
                loop("pair", end - first, empty),
            ]
        )

    def load_queries(self, where: Where, first: ir.Expr) -> list[tirx.Stmt]:
        """Round queries."""
        depth = self.config.depth

        def row(i: ir.Expr) -> tirx.Stmt:
            read = self._rounded(depth, lambda d: self.q(where, first + i, d), self._queries, i)
            return sequence([read, _zeros(self._queries, [i], depth, self._steps * STEP)])

        kept = [keep_extents(b) for b in (self._queries, self.scores, self._weights)]
        return [*kept, loop("i", self.rows, row)]

    def multiply_keys(self, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Multiply a block of tiles at a time."""
        each = self.config.vectors

        def product_of(number: ir.Expr, offset: ir.Expr, columns: int) -> tirx.Stmt:
            tiles = self._tiles.part(len(self._tiles.heights), columns // TILE_ROWS)
            panel = number * each + tirx.floordiv(offset, index(TILE_ROWS))

            def b(j: int, k: ir.Expr) -> TileAddress:
                element = load(self._keys, [panel + j, k * TILE_ROWS, index(0)])
                return TileAddress(element, TILE_ROW_BYTES)

            def c(i: int, j: int) -> TileAddress:
                return _tile(self.scores, index(i * TILE_ROWS), (panel + j) * TILE_ROWS)

            def a(i: int, k: ir.Expr) -> TileAddress:
                return _tile(self._queries, index(i * TILE_ROWS), k * STEP)

            return sequence([tiles.clear(), tiles.accumulate(self._steps, a, b), tiles.store(c)])

        return over_panels(count, self.config, product_of)

    def multiply_values(self, acc: ir.Var, slot: ir.Expr, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Round weights, and multiply a block of tiles at a time."""
        config = self.config
        vectors = tirx.floordiv(index(count) + (TILE_ROWS - 1), index(TILE_ROWS))
        steps = tirx.floordiv(index(count) + (STEP - 1), index(STEP))

        def row(i: ir.Expr) -> tirx.Stmt:
            def one(n: ir.Expr) -> tirx.Stmt:
                def store(lane: ir.Expr) -> tirx.Stmt:
                    at = [i, n * TILE_ROWS + lane]
                    return tirx.BufferStore(
                        self._weights, tirx.Cast(self._dtype, load(self.scores, at)), at
                    )

                return vectorized(TILE_ROWS, store)

            def clear(lane: ir.Expr) -> tirx.Stmt:
                zero = tirx.const(0, self._dtype)
                return tirx.BufferStore(self._weights, zero, [i, vectors * TILE_ROWS + lane])

            rounded = loop("vector", vectors, one)
            return sequence([rounded, vectorized(TILE_ROWS, clear)])

        def columns(first: int) -> tirx.Stmt:
            width = min(config.width, config.columns - first)
            tiles = self._tiles.part(len(self._tiles.heights), width // TILE_ROWS)

            def a(i: int, k: ir.Expr) -> TileAddress:
                return _tile(self._weights, index(i * TILE_ROWS), k * STEP)

            def b(j: int, k: ir.Expr) -> TileAddress:
                return _tile(self._values, k * TILE_ROWS, index(first + j * TILE_ROWS))

            def c(i: int, j: int) -> TileAddress:
                return _tile(acc, slot + i * TILE_ROWS, index(first + j * TILE_ROWS))

            start = tiles.clear() if config.single else tiles.load(c)
            return sequence([start, tiles.accumulate(steps, a, b), tiles.store(c)])

        blocks = [columns(first) for first in range(0, config.columns, config.width)]
        return [loop("i", self.rows, row), *blocks]

    def _rounded(self, elements: int, value: Element, buffer: ir.Var, row: ir.Expr) -> tirx.Stmt:
        """Store elements in a row of a buffer, in vectors."""

        def run(first: ir.Expr, width: int) -> tirx.Stmt:
            def store(lane: ir.Expr) -> tirx.Stmt:
                found = resolved(value(first + lane), lane, width)
                rounded = self._halved(vector_math(found, lane))
                return tirx.BufferStore(buffer, rounded, [row, first + lane])

            return vectorized(width, store)

        return by_vectors(elements, STEP, run)

    def _halved(self, value: ir.Expr) -> ir.Expr:
        """Round what is not of the half type yet."""
        core = uncast(value)
        return core if str(core.ty.dtype) == self._dtype else tirx.Cast(self._dtype, value)


def _if_any(rest: ir.Expr, stmt: tirx.Stmt) -> tirx.Stmt:
    """Run a statement if something is left."""
    return sequence([]) if constant(rest) == 0 else tirx.IfThenElse(rest > 0, stmt, None)


def _tile(buffer: ir.Var, row: ir.Expr, column: ir.Expr) -> TileAddress:
    """Tell where a tile of a matrix is."""
    dtype, width = str(buffer.ty.dtype), int(buffer.ty.shape[-1])
    size = WORD_BYTES // GROUP if dtype in HALF_TYPES else WORD_BYTES
    return TileAddress(load(buffer, [row, column]), width * size)


def _zeros(buffer: ir.Var, place: list[ir.Expr], first: int, end: int) -> tirx.Stmt:
    """Clear columns."""
    zero = tirx.const(0, str(buffer.ty.dtype))

    def run(start: ir.Expr, width: int) -> tirx.Stmt:
        return vectorized(
            width, lambda lane: tirx.BufferStore(buffer, zero, [*place, start + first + lane])
        )

    return by_vectors(end - first, STEP, run) if end > first else sequence([])
