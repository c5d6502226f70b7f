"""Weights in blocks times float32: numbers are unpacked in vectors, once for all rows of a tile."""

from dataclasses import dataclass
from functools import partial

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import loop, sequence
from ....instructions.cpu import WORD
from ...problem.gemm_view import GemmView
from .product import BlockAccumulators, BlockProduct, BlockRows


@dataclass(frozen=True)
class FloatBlocks(BlockProduct):
    """Products of float32, exactly those of the graph."""

    def operand_a(self, view: GemmView, rows: int) -> BlockRows:
        """Read A in place."""
        return BlockRows(view, self, rows)

    def block(self, tile: BlockAccumulators, number: ir.Expr) -> tirx.Stmt:
        """Unpack a word of each column after the other, and multiply its numbers."""
        weights, panel, rows = tile.weights, tile.place.panel, tile.place.rows
        terms = WORD // self.weights.bits
        first = (rows.first_k + number) * self.size

        def step(word: ir.Expr) -> tirx.Stmt:
            stmts: list[tirx.Stmt] = []
            for v in tile.vectors():
                packed = tirx.Var("word", f"int32x{self.lanes}")
                stmts.append(tirx.Bind(packed, weights.word(panel, number, word, v)))
                for term in range(terms):
                    numbers = tirx.Var("numbers", f"float32x{self.lanes}")
                    stmts.append(tirx.Bind(numbers, weights.number(packed, term, panel, number, v)))
                    k = first + word * terms + term
                    stmts.append(tile.each_row(partial(add, k, numbers, v)))
            return sequence(stmts)

        def add(k: ir.Expr, numbers: ir.Expr, v: ir.Expr, i: ir.Expr) -> tirx.Stmt:
            a = tile.rows.term(rows, tile.place.offset + i, k, tile.place.clamp)
            value = load(tile.part, [i, v]) + tirx.Broadcast(a, self.lanes) * numbers
            return tirx.BufferStore(tile.part, value, [i, v])

        def scaled(i: ir.Expr, scale: ir.Expr, _zeros: ir.Expr, v: tirx.Ramp) -> ir.Expr:
            return load(tile.part, [i, v]) * scale

        clear = tile.clear_part(lambda i: tirx.const(0.0, "float32"))
        finish = tile.finish_part(number, scaled)
        ahead = weights.ask_ahead(panel, number, tile.vectors())
        return sequence([*ahead, clear, loop("word", weights.words, step), finish])
