"""Finished rows: divided by their sums, and stored as the results want them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvm import ir, tirx

from ...fusion.expressions import load
from ..contraction.fuse_epilogue import is_vector_code, store_results
from ..loops import block, constant, index, local, loop, sequence, substitute
from ..vector_math import vector_math
from .lanes import along, vector
from .pattern import FLOAT, Pattern
from .sizes import Sizes


class Finish:
    """Stores results.

    Parameters
    ----------
    pattern : Pattern
        With the results.
    sizes : Sizes
        Tiles.
    out : Var
        Weighed sums of values, by slot and column.
    total : Var
        Sums of the weights, by slot.
    """

    def __init__(self, pattern: Pattern, sizes: Sizes, out: ir.Var, total: ir.Var) -> None:
        product = pattern.product
        results = tuple(replace(r, value=vector_math(r.value)) for r in product.results)
        self._pattern = replace(pattern, product=replace(product, results=results))
        self._sizes, self._out, self._total = sizes, out, total
        self._is_vector = all(is_vector_code(r, product.total) for r in results)

    def rows(
        self, where: Mapping[ir.Var, ir.Expr], query: ir.Expr, slot: ir.Expr, rows: int
    ) -> tirx.Stmt:
        """Store some rows."""

        def row(i: ir.Expr) -> tirx.Stmt:
            at = dict(where)
            if self._pattern.query is not None:
                at[self._pattern.query.var] = query + i
            return self._row(at, slot + i)

        return loop("i", rows, row)

    def _row(self, at: dict[ir.Var, ir.Expr], slot: ir.Expr) -> tirx.Stmt:
        inverse = local("inverse", [2], FLOAT)
        one, zero = tirx.const(1, FLOAT), index(0)

        def result(column: ir.Expr) -> ir.Expr:
            return load(self._out, [slot, column]) * load(inverse, [zero])

        def piece(first: ir.Expr, width: int) -> tirx.Stmt:
            return vector(width, lambda lane: self._store(at, first + lane, result(first + lane)))

        elements = constant(self._pattern.column.extent) or 1
        stmt = along(elements, self._sizes.width if self._is_vector else 1, piece)
        total = load(self._total, [slot])
        keys = index(self._pattern.key.extent)
        divisor = total
        if constant(keys) is None:  # without keys the sums of values and of weights are 0
            divisor = tirx.Select(keys > 0, total, one)
        stmts = [tirx.BufferStore(inverse, one / divisor, [zero]), stmt]
        if self._pattern.instead is None:
            return block("result", sequence(stmts), [inverse])
        # Not so for NaN either.
        is_number = total > tirx.const(0, FLOAT)
        whole = tirx.IfThenElse(is_number, sequence(stmts), self._instead(at, elements))
        return block("result", whole, [inverse])

    def _instead(self, at: dict[ir.Var, ir.Expr], elements: int) -> tirx.Stmt:
        """Weigh values by what a guard puts in the place of softmax."""
        pattern = self._pattern
        total = local("instead", [2], FLOAT)
        zero = index(0)

        def column(number: ir.Expr) -> tirx.Stmt:
            def add(key: ir.Expr) -> tirx.Stmt:
                known = {**at, pattern.key.var: key, pattern.column.var: number}
                term = substitute(pattern.instead, known) * substitute(pattern.v, known)
                return tirx.BufferStore(total, load(total, [zero]) + term, [zero])

            return sequence(
                [
                    tirx.BufferStore(total, tirx.const(0, FLOAT), [zero]),
                    loop("key", pattern.key.extent, add),
                    self._store(at, number, load(total, [zero])),
                ]
            )

        return block("instead", loop("column", elements, column), [total])

    def _store(self, at: dict[ir.Var, ir.Expr], column: ir.Expr, value: ir.Expr) -> tirx.Stmt:
        product = self._pattern.product
        place = self._pattern.place({**at, self._pattern.column.var: column})
        if str(product.total.ty.dtype) != FLOAT:
            value = tirx.Cast(str(product.total.ty.dtype), value)
        return store_results(product, place, value)
