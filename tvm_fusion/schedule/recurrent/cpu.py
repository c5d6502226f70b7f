"""Recurrent layers on a CPU: one kernel for all steps.

parallel for direction, some rows:
    h[0] = initial_h; c = initial_c
    for step:
        for phase, block of units:
            for tile of rows:
                acc[rows, gates * units] += h[row, k] * packed[block, k, gates * units]
                for row: gates, new states and outputs, as vectors of units
    last_h = h; last_c = c

The weights of a block are a panel that stays in the level-2 cache for all tiles. ``h`` alternates
between two buffers. Tasks do not depend on each other, so that threads never wait within a step;
where there is one task only, they share the blocks of units of each step instead.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ..._tvm.ir.buffer import declare
from ...core.tir.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    local,
    loop,
    sequence,
    simplified,
    substitute,
    tasks,
    when,
)
from ..cpu.register_tile import accumulate, clear, each, in_vectors
from ..math.vector_math import makes_vectors, vector_math
from .config import CpuRecurrenceConfig
from .problem import RecurrentProblem

# The cells of some rows and a block of units, in one phase of a recurrent layer on a CPU.

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


class CpuRecurrence:
    """The kernel of a recurrent layer.

    Attributes
    ----------
    packed : Var
        The recurrent weights: direction, block of units, unit of the state before, gates' units.
    states : dict of str to Var
        Workspaces.
    """

    def __init__(self, problem: RecurrentProblem, config: CpuRecurrenceConfig) -> None:
        self.problem, self.config = problem, config
        self.buffers, self.layer = problem.buffers, problem.layer
        self.states = problem.states()
        self.order = "".join(gates for gates, _ in self.layer.phases)
        h = self.buffers.hidden
        self.blocks = -(-h // config.lanes)
        shape = [self.layer.directions, self.blocks, h, len(self.order), config.lanes]
        self.packed = declare([index(d) for d in shape], self.buffers.dtype, "packed")

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs the recurrent weights."""
        return self.problem.packing(self.packed, self.order, "DNKGU", self.config.lanes)

    def body(self) -> tirx.Stmt:
        """Write the loop over tasks."""
        chunks = ceildiv(self.buffers.batch, self.config.rows)
        extents = [index(self.layer.directions), chunks]

        def task(number: ir.Expr) -> tirx.Stmt:
            d, chunk = coordinates(number, extents)
            start = simplified(chunk * self.config.rows)
            count = simplified(tirx.min(index(self.config.rows), self.buffers.batch - start))
            steps = loop("step", self.buffers.steps, lambda s: self._step(s, d, start, count))
            begin = loop("row", count, lambda r: self._begin(d, start + r))
            end = loop("row", count, lambda r: self._end(d, start + r))
            return block("task", sequence([begin, steps, end]))

        total = simplified(extents[0] * extents[1])
        return tasks(total, task, constant(total) != 1)

    def _units(self, body: Callable[[ir.Expr], list[tirx.Stmt]]) -> tirx.Stmt:
        """Run over all units in vectors, several statements one after the other in each."""
        width = self.config.lanes
        full, rest = divmod(self.buffers.hidden, width)

        def part(first: ir.Expr, width: int) -> tirx.Stmt:
            def vector(number: int) -> tirx.Stmt:
                return in_vectors(width, lambda lane: body(first + lane)[number])

            return sequence([vector(number) for number in range(len(body(first)))])

        stmts = [loop("block", full, lambda n: part(n * width, width))]
        return sequence([*stmts, *([part(index(full * width), rest)] if rest else [])])

    def _begin(self, d: ir.Expr, row: ir.Expr) -> tirx.Stmt:
        def unit(u: ir.Expr) -> list[tirx.Stmt]:
            start = self.buffers.initial("h", d, row, u)
            stmts = [tirx.BufferStore(self.states["h"], start, [index(0), d, row, u])]
            if "c" in self.states:
                start = self.buffers.initial("c", d, row, u)
                stmts.append(tirx.BufferStore(self.states["c"], start, [d, row, u]))
            return stmts

        return self._units(unit)

    def _end(self, d: ir.Expr, row: ir.Expr) -> tirx.Stmt:
        parity = simplified(tirx.floormod(self.buffers.steps, index(2)))

        def unit(u: ir.Expr) -> list[tirx.Stmt]:
            h = tirx.BufferLoad(self.states["h"], [parity, d, row, u])
            stmts = self.buffers.last("h", h, d, row, u)
            if "c" in self.states:
                c = tirx.BufferLoad(self.states["c"], [d, row, u])
                stmts += self.buffers.last("c", c, d, row, u)
            return stmts

        return self._units(unit)

    def _step(self, s: ir.Expr, d: ir.Expr, start: ir.Expr, count: ir.Expr) -> tirx.Stmt:
        return sequence(
            [self._phase(number, s, d, start, count) for number in range(len(self.layer.phases))]
        )

    def _phase(
        self, number: int, s: ir.Expr, d: ir.Expr, start: ir.Expr, count: ir.Expr
    ) -> tirx.Stmt:
        """Run over blocks of units; the last one may be narrower."""
        width, mr = self.config.lanes, self.config.tile
        full, rest = divmod(self.buffers.hidden, width)

        def units(n: ir.Expr, width: int) -> tirx.Stmt:
            def tile(first: ir.Expr, height: int) -> tirx.Stmt:
                return CellTile(self, number, s, d, first, height, n, width).stmt()

            whole = simplified(tirx.floordiv(count, index(mr)))
            stmts = [loop("tile", whole, lambda t: tile(start + t * mr, mr))]
            batch = constant(self.buffers.batch)
            if batch is None:
                left = simplified(count - whole * mr)
                stmts.append(loop("row", left, lambda r: tile(start + whole * mr + r, 1)))
            elif batch % mr:
                # The last task alone has fewer rows than whole tiles.
                is_last = start + self.config.rows >= index(batch)
                stmts.append(when(is_last, tile(index(batch // mr * mr), batch % mr)))
            return sequence(stmts)

        parallel = self.config.shares_steps and full > 1
        kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
        stmts = [loop("block", full, lambda n: units(n, width), kind)]
        return sequence([*stmts, *([units(index(full), rest)] if rest else [])])
