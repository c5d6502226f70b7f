"""Weights of a skinny GEMM on tensor cores: tiles of a half type, or of int4/int8 with scales.

The scales of quantization groups multiply a group's sums in float32, not each weight.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import mul

from tvm import ir, sym, tirx

from .....core.tir.expressions import load, variables
from .....core.tir.loops import index, local, sequence, substitute, unrolled
from ....gpu.matrix.mma_sync import mma_m16n8k16
from ....gpu.memory.vector_loads import ElementLoads, VectorLoad
from ....gpu.registers.buffers import RegisterBuffers
from ...dequantize.f16x2 import DequantizeF16x2, Encoding, quantized_and_scales
from ...dequantize.float32 import widened
from .config import SkinnyMmaConfig, uncast

Where = dict[ir.Var, ir.Expr]


class WeightTiles:
    """The weights of a thread's tiles.

    Parameters
    ----------
    analyzer
        Knows the ranges of the variables in indices.

    Attributes
    ----------
    order : list of int
        The order of a tile's k in fragments.
    scales : list of callable or None
        For integers, of each column the scale of its sums at a copy, a place and a thread.
    encodings : list of list of Encoding
        For integers, of each column the encoding of the k of each instruction.
    """

    def __init__(self, config: SkinnyMmaConfig, analyzer: sym.Analyzer) -> None:
        tile, elements = config.tile, ElementLoads(analyzer)
        b = uncast(config.b)
        self._values = [
            [elements.read(tile.at(b, k, n)) for k in range(tile.k)] for n in range(tile.n)
        ]
        copies = config.stages * config.parts
        vectors = elements.vectors()
        # Scales of groups share cache lines with those of the next steps: keep these in L1.
        scales = [v for v in vectors if len(v.elements) == 1 and tile.k_tile in _variables(v)]
        self._registers = RegisterBuffers(vectors, copies, config.threads, is_streamed=bool(scales))
        self.buffers = list(self._registers.arrays)
        self.order = [*range(tile.k)]
        self.scales: list[Callable[[ir.Expr, Where, ir.Expr], ir.Expr]] | None = None
        self.encodings: list[list[Encoding]] = []
        self._dequantized: DequantizeF16x2 | None = None
        if config.is_quantized:
            self._split_scales(config)

    def _split_scales(self, config: SkinnyMmaConfig) -> None:
        split = [[quantized_and_scales(value) for value in column] for column in self._values]
        found = [[pair for pair in column if pair is not None] for column in split]
        quantized = [[value for value, _ in column] for column in found]
        self._dequantized = DequantizeF16x2(quantized, self._registers, config.half, config.threads)
        self.order = self._dequantized.order
        self.encodings = [
            self._dequantized.encodings(column, config.mma.k_per_lane)
            for column in range(config.tile_n)
        ]
        self.buffers.append(self._dequantized.array)
        self.scales = [self._scale(column[0][1]) for column in found]

    def _scale(self, factors: Sequence[ir.Expr]) -> Callable[[ir.Expr, Where, ir.Expr], ir.Expr]:
        wide = [widened(factor, lambda _: None) for factor in factors]
        value = reduce(mul, wide) if wide else tirx.const(1, "float32")

        def scale(copy: ir.Expr, where: Where, thread: ir.Expr) -> ir.Expr:
            return substitute(self._registers.values(value, copy, thread), where)

        return scale

    def load(self, copy: ir.Expr, where: Where, thread: ir.Expr) -> tirx.Stmt:
        """Load the tile at a place into a copy."""
        return self._registers.fill(copy, where, None, thread)

    def dequantize(self, copy: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Convert a copy's integers to half types; those of the copy before are overwritten."""
        return sequence([]) if self._dequantized is None else self._dequantized.fill(copy, thread)

    def value(self, column: int, k: int, copy: ir.Expr, where: Where, thread: ir.Expr) -> ir.Expr:
        """Return a weight of the copy that was dequantized last."""
        if self._dequantized is not None:
            return self._dequantized.value(column, k, thread)
        held = self._registers.values(self._values[column][k], copy, thread)
        return substitute(held, where)


def _variables(vector: VectorLoad) -> set[ir.Var]:
    return {v for i in vector.first.indices for v in variables(i)}


# Group-wise dequantization on tensor cores: sums of a group of integers, scaled afterwards.
#
# Weights are f16x2 with a bias, w = bias + q / scale (see dequantize/f16x2). Per group of k:
# bias_sums = mma(-bias, A) once for all columns with the same bias group = bias_sums + mma(w, A) =
# sum of A * q / scale acc += scale * group scale * group float32
class GroupAccumulators:
    """A thread's accumulators of one quantization group.

    Parameters
    ----------
    encodings
        Of each column the encoding of the k of each instruction.
    """

    def __init__(self, config: SkinnyMmaConfig, encodings: Sequence[Sequence[Encoding]]) -> None:
        self._config = config
        self._k, self._sums = config.mma.k_per_lane, config.mma.c.per_lane  # of a thread
        by_chunk = [*zip(*encodings, strict=True)]
        # Instructions whose columns are encoded alike add to the same accumulators.
        self._runs = [
            (columns, [chunk for chunk, _ in some])
            for columns, some in groupby(enumerate(by_chunk), key=lambda pair: pair[1])
        ]
        biases = dict.fromkeys(code.bias for columns, _ in self._runs for code in columns)
        self._bias_places = {bias: n * self._k for n, bias in enumerate(biases)}
        starts = dict.fromkeys(self._biases_of(run, pair) for run, pair in self._pairs())
        size = config.n8 * self._sums
        self._starts = {start: n * size for n, start in enumerate(starts)}
        threads, per_run = config.threads, config.accumulators // config.parts
        self._biases = local("biases", [threads, len(biases) * self._k], config.half)
        self._bias_sums = local("bias_sums", [threads, len(starts) * size], "float32")
        self._group = local("group", [threads, len(self._runs) * per_run], "float32")
        self.buffers = [self._biases, self._bias_sums, self._group]

    def begin(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the fragments of negative biases."""
        return sequence(
            [
                tirx.BufferStore(self._biases, tirx.const(-bias, self._config.half), [thread, n])
                for bias, first in self._bias_places.items()
                for n in map(index, range(first, first + self._k))
            ]
        )

    def multiply(
        self,
        thread: ir.Expr,
        b_frag: Callable[[int, int], ir.TensorLoad],
        a_frag: Callable[[ir.Expr, int], ir.TensorLoad],
    ) -> tirx.Stmt:
        """Sum up one group.

        Parameters
        ----------
        b_frag, a_frag
            Return the first element of a column's, or of an n8's, fragment of an instruction.
        """
        half = self._config.half

        def fragment(n8: ir.Expr) -> tirx.Stmt:
            stmts = []
            for (run, *pair_biases), first in self._starts.items():
                place = first + n8 * self._sums
                acc = load(self._bias_sums, [thread, place])
                stmts.append(self._clear(thread, place))
                biases = [
                    load(self._biases, [thread, index(self._bias_places[b])]) for b in pair_biases
                ]
                chunks = self._runs[run][1]
                stmts += [mma_m16n8k16(half, acc, biases, a_frag(n8, chunk)) for chunk in chunks]
            for run, pair in self._pairs():
                place = self._place(run, n8, pair)
                start = self._starts[self._biases_of(run, pair)] + n8 * self._sums
                stmts.append(self._copy(thread, place, start))
                acc = load(self._group, [thread, place])
                for chunk in self._runs[run][1]:
                    columns = [b_frag(2 * pair + side, chunk) for side in range(2)]
                    stmts.append(mma_m16n8k16(half, acc, columns, a_frag(n8, chunk)))
            return sequence(stmts)

        return unrolled("n8", self._config.n8, fragment)

    def value(self, thread: ir.Expr, number: int, column: int) -> ir.Expr:
        """Return an accumulator of a column, in units of the group's scale."""
        size = self._config.accumulators // self._config.parts
        found = tirx.const(0.0)
        for run, (columns, _) in enumerate(self._runs):
            own = load(self._group, [thread, index(run * size + number)])
            found = found + own * tirx.const(columns[column].scale, "float32")
        return found

    def _pairs(self) -> Iterator[tuple[int, int]]:
        for run in range(len(self._runs)):
            for pair in range(self._config.tile_n // 2):
                yield run, pair

    def _biases_of(self, run: int, pair: int) -> tuple[int, float, float]:
        """Return the biases of a pair of columns, the key of their bias sums."""
        low, high = self._runs[run][0][2 * pair : 2 * pair + 2]
        return run, low.bias, high.bias

    def _place(self, run: int, n8: ir.Expr, pair: int) -> ir.Expr:
        return ((run * self._config.n8 + n8) * (self._config.tile_n // 2) + pair) * self._sums

    def _clear(self, thread: ir.Expr, first: ir.Expr) -> tirx.Stmt:
        def one(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._bias_sums, tirx.const(0.0), [thread, first + i])

        return unrolled("i", self._sums, one)

    def _copy(self, thread: ir.Expr, first: ir.Expr, start: ir.Expr) -> tirx.Stmt:
        def one(i: ir.Expr) -> tirx.Stmt:
            value = load(self._bias_sums, [thread, start + i])
            return tirx.BufferStore(self._group, value, [thread, first + i])

        return unrolled("i", self._sums, one)
