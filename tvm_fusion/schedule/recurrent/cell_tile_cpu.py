"""The cells of some rows and a block of units, in one phase of a recurrent layer on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import ir, tirx

from ...core.tir.loops import block, index, local, loop, sequence, substitute
from ..cpu.register_tile import accumulate, clear, each, in_vectors
from ..math.vector_math import makes_vectors, vector_math

if TYPE_CHECKING:
    from .cpu import CpuRecurrence

MOST_VALUES = 24  # of a unit in one phase


class CellTile:
    """Some rows and a block of units in one phase: :class:`...core.recurrent.cell.CellValues`.

    Expressions are those of one lane.
    """

    def __init__(
        self,
        kernel: CpuRecurrence,
        number: int,
        s: ir.Expr,
        d: ir.Expr,
        first: ir.Expr,
        height: int,
        n: ir.Expr,
        width: int,
    ) -> None:
        self.kernel, self.buffers = kernel, kernel.buffers
        self.number, self.s, self.d, self.first, self.n = number, s, d, first, n
        self.height, self.width, self.lanes = height, width, kernel.config.lanes
        self.gates, self.source = kernel.layer.phases[number]
        self.lane = tirx.Var("lane", "int64")
        self.unit = n * self.lanes + self.lane
        columns = len(self.gates) * self.lanes
        dtype = self.buffers.dtype
        self.acc = local("acc", [height, columns], dtype)
        self.products = local("products", [height, columns], dtype)
        self.values = local("values", [MOST_VALUES, self.lanes], dtype)
        self.stmts: list[tirx.Stmt] = []
        self.count = 0

    def stmt(self) -> tirx.Stmt:
        """Write the products, then what each row does with them."""
        kernel, acc = self.kernel, self.acc
        before = len(kernel.order) - len(self.gates) if self.number else 0

        def weight(k: ir.Expr, column: ir.Expr) -> ir.Expr:
            gate, lane = (
                before + tirx.floordiv(column, self.lanes),
                tirx.floormod(column, self.lanes),
            )
            return tirx.BufferLoad(kernel.packed, [self.d, self.n, k, gate, lane])

        summed = accumulate(
            acc,
            self.buffers.hidden,
            lambda i, k: self._state(self.source, self.first + i, k),
            weight,
        )
        kept = each(
            acc,
            lambda i, column: tirx.BufferStore(
                self.products, tirx.BufferLoad(acc, [i, column]), [i, column]
            ),
        )
        zero = tirx.const(0, self.buffers.dtype)
        products = block("products", sequence([clear(acc, zero), summed, kept]), [acc])
        rows = loop("row", self.height, self._row)
        return block("tile", sequence([products, rows]), [self.products])

    def _row(self, i: ir.Expr) -> tirx.Stmt:
        self.i, self.row = i, self.first + i
        self.time = self.buffers.time(self.s, self.d, self.row)
        self.stmts, self.count = [], 0
        self.kernel.layer.phase(self.number, self.d, self)
        body = block("units", sequence(self.stmts), [self.values])
        if "lengths" not in self.buffers.buffers:
            return body
        self.stmts, self.count = [], 0
        is_inside = self.s < self.buffers.length(self.row)
        if self.number:
            return tirx.IfThenElse(is_inside, body, None)
        return tirx.IfThenElse(is_inside, body, self._idle())

    def _idle(self) -> tirx.Stmt:
        """Keep the state behind the end of a row, where outputs are zero."""
        at = [self.d, self.row, self.unit]
        old = self._state("h", self.row, self.unit)
        self._vector(tirx.BufferStore(self.kernel.states["h"], old, [self._next(), *at]))
        zero = tirx.const(0, self.buffers.dtype)
        for store in self.buffers.output(zero, self.s, *at):
            self._vector(store)
        return sequence(self.stmts)

    def _next(self) -> ir.Expr:
        return tirx.floormod(self.s + 1, index(2))

    def _state(self, name: str, row: ir.Expr, unit: ir.Expr) -> ir.Expr:
        at = [self.d, row, unit]
        if name == "h":
            at = [tirx.floormod(self.s, index(2)), *at]
        return tirx.BufferLoad(self.kernel.states[name], at)

    def _vector(self, store: tirx.BufferStore) -> None:
        """Write a store of one lane for all lanes."""
        value = vector_math(store.value, self.lane)

        def one(lane: ir.Expr) -> tirx.Stmt:
            at = {self.lane: lane}
            indices = [substitute(i, at) for i in store.indices]
            return tirx.BufferStore(store.buffer, substitute(value, at), indices)

        if makes_vectors(value, self.lane):
            self.stmts.append(in_vectors(self.width, one))
        else:
            self.stmts.append(loop("unit", self.width, one))

    def product(self, gate: str) -> ir.Expr:
        """Load the recurrent product of a gate."""
        column = self.gates.index(gate) * self.lanes + self.lane
        return tirx.BufferLoad(self.products, [self.i, column])

    def projected(self, gate: str) -> ir.Expr:
        """Load the projected input of a gate."""
        return self.buffers.projected(gate, self.time, self.d, self.row, self.unit)

    def old(self, name: str) -> ir.Expr:
        """Load a state of the step before."""
        return self._state(name, self.row, self.unit)

    def peephole(self, gate: str) -> ir.Expr:
        """Load the peephole weight of a gate."""
        return self.buffers.peephole(gate, self.d, self.unit)

    def recurrent_bias(self) -> ir.Expr:
        """Load the bias inside of the product."""
        return self.buffers.bias(self.d, self.unit)

    def assign(self, name: str, value: ir.Expr) -> ir.Expr:
        """Keep a value for the rest of the phase; returns how to load it."""
        at = [index(self.count), self.lane]
        self.count += 1
        self._vector(tirx.BufferStore(self.values, value, at))
        return tirx.BufferLoad(self.values, at)

    def put(self, name: str, value: ir.Expr) -> None:
        """Store a new state; the hidden one is an output, too."""
        at = [self.d, self.row, self.unit]
        if name != "h":
            self._vector(tirx.BufferStore(self.kernel.states[name], value, at))
            return
        value = self.assign("h", value)
        self._vector(tirx.BufferStore(self.kernel.states["h"], value, [self._next(), *at]))
        for store in self.buffers.output(value, self.time, *at):
            self._vector(store)
