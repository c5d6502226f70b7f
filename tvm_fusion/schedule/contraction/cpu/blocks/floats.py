"""Weights in blocks times float32: numbers are unpacked in vectors, once for all rows of a tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import loop, sequence
from ...problem.gemm_view import GemmView
from .product import BlockAccumulators, BlockProduct, BlockRows, lanes_of

_WORD = 32  # bits


@dataclass(frozen=True)
class FloatBlocks(BlockProduct):
    """Products of float32, exactly those of the graph."""

    def operand_a(self, view: GemmView, rows: int) -> BlockRows:
        """Read A in place."""
        return BlockRows(view, self, rows)

    def block(self, tile: BlockAccumulators, number: ir.Expr) -> tirx.Stmt:
        """Unpack a word of each column after the other, and multiply its numbers."""
        weights, panel, rows = tile.weights, tile.place.panel, tile.place.rows
        terms = _WORD // self.weights.bits
        first = (rows.first_k + number) * self.size

        def step(word: ir.Expr) -> tirx.Stmt:
            stmts: list[tirx.Stmt] = []
            for v in tile.vectors():
                packed = tirx.Var("word", f"int32x{self.lanes}")
                stmts.append(tirx.Bind(packed, weights.word(panel, number, word, v)))
                for term in range(terms):
                    numbers = tirx.Var("numbers", f"float32x{self.lanes}")
                    stmts.append(tirx.Bind(numbers, self._unpacked(packed, term, tile, number, v)))
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

    def _unpacked(
        self, packed: ir.Var, term: int, tile: BlockAccumulators, number: ir.Expr, v: tirx.Ramp
    ) -> ir.Expr:
        """Unpack the numbers of one term, less their zero points."""
        lanes, bits, zero = self.lanes, self.weights.bits, tile.weights.constant_zero
        shift = tile.weights.shift_of(term)
        moved = tirx.shift_right(packed, lanes_of(shift, lanes)) if shift else packed
        if lanes == 16 and bits == 4 and zero is not None:
            # A permutation reads the four lowest bits of each lane: a table of all 16 numbers.
            values = [tirx.const(n - zero, "float32") for n in range(16)]
            table = tirx.Shuffle(values, [tirx.const(n, "int32") for n in range(16)])
            name = "llvm.x86.avx512.permvar.sf.512"
            return tirx.call_llvm_pure_intrin("float32x16", name, table, moved)
        moved = tirx.bitwise_and(moved, lanes_of((1 << bits) - 1, lanes))
        return tirx.Cast(f"float32x{lanes}", moved) - tile.weights.zero(tile.place.panel, number, v)
