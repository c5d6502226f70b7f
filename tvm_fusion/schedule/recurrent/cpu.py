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
    loop,
    sequence,
    simplified,
    tasks,
    when,
)
from ..cpu.register_tile import in_vectors
from .cell_tile_cpu import CellTile
from .config import CpuRecurrenceConfig
from .problem import RecurrentProblem


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
