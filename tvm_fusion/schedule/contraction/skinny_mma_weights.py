"""Weights of a skinny GEMM on tensor cores: tiles of a half type, or of int4/int8 with scales.

The scales of quantization groups multiply a group's sums in float32, not each weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul

from tvm import ir, sym, tirx

from ...core.expressions import variables
from ...core.loops import sequence, substitute
from ..gpu.register_buffers import RegisterBuffers
from ..gpu.vector_loads import ElementLoads, VectorLoad
from .dequantize import widened
from .dequantize_f16x2 import DequantizeF16x2, Encoding, quantized_and_scales
from .skinny_mma_config import SkinnyMmaConfig, uncast

Where = dict[ir.Var, ir.Expr]


class WeightTiles:
    """The weights of a thread's tiles.

    Parameters
    ----------
    config : SkinnyMmaConfig
        The product.
    analyzer : Analyzer
        Knows the ranges of the variables in indices.

    Attributes
    ----------
    order : list of int
        The order of a tile's k in fragments.
    scales : list of callable or None
        For integers, of each column the scale of its sums at a copy, a place and a thread.
    encodings : list of list of Encoding
        For integers, of each column the encoding of the k of each instruction.
    buffers : list of Var
        Buffers of the weights.
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
        """Give a weight of the copy that was dequantized last."""
        if self._dequantized is not None:
            return self._dequantized.value(column, k, thread)
        held = self._registers.values(self._values[column][k], copy, thread)
        return substitute(held, where)


def _variables(vector: VectorLoad) -> set[ir.Var]:
    return {v for i in vector.first.indices for v in variables(i)}
