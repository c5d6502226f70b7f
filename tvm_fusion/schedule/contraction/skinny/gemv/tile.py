"""Tiles of a skinny GEMM on CUDA cores, in one thread: load tiles of A and B, then FMA.

load(slot, k_tile):      B[part] tile, A[row] k's of the tile      vectors, global -> registers
multiply(slot, k_tile):
  for part, for k in tile:
    a[row] = float32(A[row, k])
    for n in tile:  b = dequantized B[k, n];  acc[row, part, n] += a[row] * b
  quantized B with one scale per tile and column: products go to partial[row, n] first,
    then acc[row, part, n] += partial[row, n] * scale[n]
"""

from collections.abc import Callable, Sequence
from functools import partial

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import Body, index, local, sequence, substitute, unrolled
from ....gpu.memory.vector_loads import ElementLoads
from ....gpu.registers.buffers import RegisterBuffers
from ....instructions.amd import multiply
from ....instructions.instruction import Instruction
from ...dequantize.float32 import common_factors, has_integers, widened
from .config import GemvConfig

Source = Callable[[ir.Expr, int, ir.Expr], ir.Expr]


class GemvTile:
    """Load and multiply tiles in one thread.

    Parameters
    ----------
    block, n_tile
        The block, and the tile of columns in it.
    place
        Where an accumulator is in them, from its number in ``[m, parts, tile_n]``.
    keeps_b
        The thread, where tiles of B are kept from one phase to the next.

    Attributes
    ----------
    registers : list of Var
        Buffers that hold tiles.
    kept : list of Var
        Those that are kept.
    """

    def __init__(
        self,
        config: GemvConfig,
        block: ir.Expr,
        n_tile: ir.Expr,
        acc: ir.Var,
        place: Callable[[ir.Expr], list[ir.Expr]],
        keeps_b: ir.Expr | None = None,
    ) -> None:
        self._config, self._block, self._n_tile = config, block, n_tile
        self._keeper = () if keeps_b is None else (keeps_b,)
        self._acc, self._place = acc, place
        tile, stage, dtype = config.tile, config.contraction.stage, config.contraction.dtype
        analyzer = tile.analyzer((*stage.axes, *stage.reduce))
        a, b = ElementLoads(analyzer), ElementLoads(analyzer)
        self._a_values = [a.read(tile.at(config.a, k, 0)) for k in range(tile.k)]
        self._b_values = [
            [b.read(tile.at(config.b, k, n)) for k in range(tile.k)] for n in range(tile.n)
        ]
        self._is_quantized = has_integers(config.b) and dtype == "float32"
        self._a = RegisterBuffers(a.vectors(), config.stages * config.m)
        threads = config.threads if self._keeper else 0
        self._b = RegisterBuffers(b.vectors(), config.stages * config.parts, threads)
        self._a_value = local("a_value", [config.m], dtype)
        self._b_value = local("b_value", [1], dtype)
        self._partial = local("partial", [config.m * tile.n], dtype)
        own = [self._a_value, self._b_value, self._partial]
        self.kept = self._b.arrays if self._keeper else []
        self.registers = [*([] if self._keeper else self._b.arrays), *self._a.arrays, *own]

    def load(self, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Load a tile of B for each part, and its k of each row of A, into a register slot."""
        return sequence([self.load_b(slot, k_tile), self.load_a(slot, k_tile)])

    def load_a(self, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Load a tile's k of each row of A."""

        def row(r: ir.Expr) -> tirx.Stmt:
            return self._a.fill(slot * self._config.m + r, self._at(r, 0, k_tile))

        return self._rows(row)

    def load_b(self, slot: ir.Expr, k_tile: ir.Expr, source: Source | None = None) -> tirx.Stmt:
        """Load a tile of B for each part.

        Parameters
        ----------
        slot, k_tile
            The register slot, and the tile's number along K.
        source
            Gives an element by part, vector and lane where B was staged; otherwise it is read
            from global memory.
        """
        config = self._config

        def one(p: ir.Expr) -> tirx.Stmt:
            staged = None if source is None else partial(source, p)
            place = self._at(0, p, k_tile)
            return self._b.fill(slot * config.parts + p, place, staged, *self._keeper)

        return self._parts(one)

    def each_vector(
        self, k_tile: ir.Expr, body: Callable[[ir.Expr, int, ir.TensorLoad], tirx.Stmt]
    ) -> tirx.Stmt:
        """Write ``body(part, vector, first element)`` for all vectors of a tile of B."""

        def one(p: ir.Expr) -> tirx.Stmt:
            here = self._at(0, p, k_tile)
            firsts = [substitute(v.load(index(0)), here) for v in self._b.vectors]
            return sequence([body(p, number, first) for number, first in enumerate(firsts)])

        return self._parts(one)

    def multiply(self, slot: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        """Multiply and add what :meth:`load` has loaded."""
        return self._parts(lambda p: self._multiply_part(slot, p, k_tile))

    def _multiply_part(self, slot: ir.Expr, part: ir.Expr, k_tile: ir.Expr) -> tirx.Stmt:
        config = self._config
        if config.dot is not None:
            return self._multiply_words(config.dot, slot, part, k_tile)
        copy, here = slot * config.parts + part, self._at(0, part, k_tile)
        columns = [self._dequantized(column, copy) for column in self._b_values]
        one = [index(0)]

        def hold_b(b: ir.Expr) -> tirx.Stmt:
            value = substitute(self._b.values(b, copy, *self._keeper), here)
            return tirx.BufferStore(self._b_value, value, one)

        def hold_a(a: ir.Expr) -> tirx.Stmt:
            def row(r: ir.Expr) -> tirx.Stmt:
                held = self._a.values(a, slot * config.m + r)
                value = self._cast(substitute(held, self._at(r, 0, k_tile)))
                return tirx.BufferStore(self._a_value, value, [r])

            return self._rows(row)

        def fma(n: int, is_scaled: bool, is_first: bool) -> tirx.Stmt:
            def row(r: ir.Expr) -> tirx.Stmt:
                product = load(self._a_value, [r]) * load(self._b_value, one)
                if is_scaled and is_first:
                    return tirx.BufferStore(self._partial, product, self._partial_place(r, n))
                if is_scaled:
                    return _add(self._partial, self._partial_place(r, n), product)
                return _add(self._acc, self._acc_place(r, part, n), product)

            return self._rows(row)

        def fma_scaled(n: int) -> tirx.Stmt:
            def row(r: ir.Expr) -> tirx.Stmt:
                product = load(self._partial, self._partial_place(r, n)) * load(self._b_value, one)
                return _add(self._acc, self._acc_place(r, part, n), product)

            return self._rows(row)

        stmts = []
        for k, a in enumerate(self._a_values):
            stmts.append(hold_a(a))
            for n, (values, scale) in enumerate(columns):
                stmts += [hold_b(values[k]), fma(n, scale is not None, k == 0)]
        for n, (_, scale) in enumerate(columns):
            if scale is not None:
                stmts += [hold_b(scale), fma_scaled(n)]
        return sequence(stmts)

    def _multiply_words(
        self, dot: Instruction, slot: ir.Expr, part: ir.Expr, k_tile: ir.Expr
    ) -> tirx.Stmt:
        """Multiply words along K, as many k as a dot product has."""
        config = self._config
        copy, here = slot * config.parts + part, self._at(0, part, k_tile)

        def word(elements: Sequence[ir.Expr]) -> ir.Expr:
            return tirx.Shuffle([_uncast(x) for x in elements], list(range(dot.k)))

        def columns(first: int) -> Callable[[ir.Expr], tirx.Stmt]:
            def row(r: ir.Expr) -> tirx.Stmt:
                held = [
                    substitute(self._a.values(x, slot * config.m + r), self._at(r, 0, k_tile))
                    for x in self._a_values[first : first + dot.k]
                ]
                a, stmts = word(held), []
                for n, column in enumerate(self._b_values):
                    values = column[first : first + dot.k]
                    b = word([substitute(self._b.values(x, copy), here) for x in values])
                    place = self._acc_place(r, part, n)
                    total = multiply(dot, a, b, load(self._acc, place))
                    stmts.append(tirx.BufferStore(self._acc, total, place))
                return sequence(stmts)

            return row

        firsts = range(0, config.tile.k, dot.k)
        return sequence([self._rows(columns(first)) for first in firsts])

    def _dequantized(
        self, column: Sequence[ir.Expr], copy: ir.Expr
    ) -> tuple[list[ir.Expr], ir.Expr | None]:
        """Express the values of a column of the tile, and the scale that all of them share."""
        if not self._is_quantized:
            return [self._cast(value) for value in column], None
        return common_factors([widened(v, lambda e: self._b.word(e, copy)) for v in column])

    def _cast(self, value: ir.Expr) -> ir.Expr:
        return tirx.Cast(self._config.contraction.dtype, value)

    def _at(
        self, row: ir.Expr | int, part: ir.Expr | int, k_tile: ir.Expr
    ) -> dict[ir.Var, ir.Expr]:
        place = self._config.axes_at(self._block, row, part, self._n_tile)
        return place | {self._config.tile.k_tile: k_tile}

    def _rows(self, body: Body) -> tirx.Stmt:
        return unrolled("row", self._config.m, body)

    def _parts(self, body: Body) -> tirx.Stmt:
        return unrolled("part", self._config.parts, body)

    def _acc_place(self, row: ir.Expr, part: ir.Expr, n: int) -> list[ir.Expr]:
        return self._place((row * self._config.parts + part) * self._config.tile_n + n)

    def _partial_place(self, row: ir.Expr, n: int) -> list[ir.Expr]:
        return [row * self._config.tile_n + n]


def _uncast(value: ir.Expr) -> ir.Expr:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


def _add(buffer: ir.Var, place: list[ir.Expr], value: ir.Expr) -> tirx.Stmt:
    return tirx.BufferStore(buffer, load(buffer, place) + value, place)
