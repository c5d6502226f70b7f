"""Walks over the rows of a thread block whose threads take whole vectors of elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from ...core.loops import NEAR
from ..expressions import contains
from .block import Block, Spot
from .emit import (
    Pairs,
    assign,
    bind,
    element,
    integer,
    loop,
    replace,
    sequence,
    static_volume,
    unflatten,
)
from .geometry import VECTOR_ELEMENTS
from .registers import steps_of
from .stages import Axis, Stage
from .vectors import is_streamed, is_vector, lanes_at_once

READ_AHEAD = 8  # times 16 bytes that a thread asks for before it uses the first
UNROLLED, VECTORIZED = tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED


@dataclass(frozen=True)
class Read:
    """A load of an input, read in vectors.

    Attributes
    ----------
    stage : Stage
        Whose axes it mentions.
    load : TensorLoad
        What is read.
    registers : Var
        Where it goes.
    is_row : bool
        Whether these are the registers of a whole row, rather than of some vectors.
    is_streamed : bool
        Whether it is asked for before anything is computed, since it comes from far.
    """

    stage: Stage
    load: ir.TensorLoad
    registers: ir.Var
    is_row: bool
    is_streamed: bool


class VectorWalk:
    """Takes every ``threads``-th vector of a row, from the thread's own on.

    What only this row needs is read for several vectors, then those are computed, element by
    element in registers, and written. Only copies are vector statements, so it does not matter
    which arithmetic a GPU's language has on vectors.

    Parameters
    ----------
    block : Block
        Whose threads.
    stages : sequence of Stage
        Of one walk.
    r, t : Expr
        The row of the block, and the thread of the row.
    """

    def __init__(self, block: Block, stages: Sequence[Stage], r: ir.Expr, t: ir.Expr):
        self.block, self.stages, self.r, self.t = block, stages, r, t
        order = block.order(stages[0].domain)
        self.width = order.width
        self.axes = [[stage.domain[i] for i in order.axes] for stage in stages]
        self.vectors = order.vectors(static_volume(self.axes[0], 1))
        self.steps = steps_of(self.axes[0], block.geometry.threads, order) or 1
        loads = self._loads()
        streams = sum(is_streamed(load, stage.rows) for stage, load in loads)
        self.ahead = min(self.steps, max(1, READ_AHEAD * order.parts // max(streams, 1)))
        self.reads = [self._read(stage, load) for stage, load in loads]
        self.results = [
            (target, self._registers(target, self.width))
            for stage in stages
            if stage.is_map
            for target in stage.targets
            if not block.program.is_internal(target)
        ]

    def whole(self) -> tirx.Stmt:
        """Write the walk: some vectors at a time, first what is read, then what is computed."""
        if self.steps * self.width <= VECTOR_ELEMENTS:
            starts = range(0, self.steps, self.ahead)
            return sequence(
                [self._group(integer(s), min(self.ahead, self.steps - s)) for s in starts]
            )
        groups = -(-self.steps // self.ahead)
        return loop("group", groups, lambda g: self._group(g * self.ahead, self.ahead))

    def _group(self, first: ir.Expr, count: int) -> tirx.Stmt:
        streamed = [read for read in self.reads if read.is_streamed]

        def read_all(number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
            return sequence([self._copy(read, number, step) for read in streamed])

        phases = [read_all, self._vector] if streamed else [self._vector]
        return sequence([self._each(first, count, phase) for phase in phases])

    def _each(
        self, first: ir.Expr, count: int, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Write ``body(number in the group, number of the step)`` for each vector of a group."""

        def step(number: ir.Expr) -> tirx.Stmt:
            at = first + number
            stmt = body(number, at)
            exists = self._exists(at)
            if exists is not None:
                stmt = tirx.IfThenElse(exists, stmt, None)
            is_mine = self.block.is_mine(self.stages, at)
            return stmt if is_mine is None else tirx.IfThenElse(is_mine, stmt, None)

        return loop("step", count, step, UNROLLED)

    def _exists(self, step: ir.Expr) -> ir.Expr | None:
        """Whether the thread has a vector left; ``None`` if all have."""
        threads = self.block.geometry.threads
        if self.steps * threads == self.vectors and self.steps % self.ahead == 0:
            return None
        # The first condition is known where the walk is unrolled.
        return tirx.Or(step < self.vectors // threads, step * threads + self.t < self.vectors)

    def _vector(self, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Compute the elements of one vector."""
        near = [self._copy(x, number, step) for x in self.reads if not x.is_streamed]

        def lane(lane: ir.Expr) -> tirx.Stmt:
            held = tuple(
                (
                    replace(read.load, self._element(read.stage, step, lane), lambda load: load),
                    element(read.registers, self._slot(read, number, step, lane)),
                )
                for read in self.reads
            )
            spot = Spot(self.r, self.t, step * self.width + lane, held)
            stmts = [self._stage(s, step, lane, spot) for s in self.stages if not self._is_read(s)]
            return sequence(stmts) if stmts else tirx.Evaluate(integer(0))

        return sequence(
            [
                *near,
                loop("lane", self.width, lane, UNROLLED),
                *(self._write(target, own, step) for target, own in self.results),
            ]
        )

    def _stage(self, stage: Stage, step: ir.Expr, lane: ir.Expr, spot: Spot) -> tirx.Stmt:
        block = self.block
        pairs = self._element(stage, step, lane)
        values = [block.value(stage, value, pairs, spot) for value in stage.values]
        mine = [self.r, self.t]
        if stage.combine_in_turn is not None:
            terms = block.terms(stage)
            old, new = [element(b, mine) for b in terms], self._terms(stage, values, step, lane)
            return assign(terms, mine, stage.combine_in_turn(old, new))
        own = next((own for target, own in self.results if target.same_as(stage.targets[0])), None)
        if own is None:
            return block.store(stage, pairs, spot, values)
        return tirx.BufferStore(own, values[0], [*mine, lane])

    def _terms(
        self, stage: Stage, values: Sequence[ir.Expr], step: ir.Expr, lane: ir.Expr
    ) -> Sequence[ir.Expr]:
        """Say what an element adds to a reduction."""
        return values

    def _copy(self, read: Read, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Read one vector."""

        def one(lane: ir.Expr) -> tirx.Stmt:
            value = replace(read.load, self._side(read.stage, step, lane), lambda load: load)
            return tirx.BufferStore(read.registers, value, self._slot(read, number, step, lane))

        copy = self._in_chunks(str(read.load.source.dtype), one)
        if read.is_streamed or not isinstance(copy, tirx.For):
            return copy
        return tirx.For(
            copy.loop_var, copy.min, copy.extent, copy.kind, copy.body, annotations={NEAR: True}
        )

    def _write(self, target: ir.Var, own: ir.Var, step: ir.Expr) -> tirx.Stmt:
        """Write one vector."""
        return self.block.once(
            self._in_chunks(str(target.dtype), lambda lane: self._store(target, own, step, lane)),
            self.r,
        )

    def _store(self, target: ir.Var, own: ir.Var, step: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        """Write one element of a vector, beside its first."""
        stage = next(s for s in self.stages if contains(s.targets, target))
        pairs = self._side(stage, step, lane)
        where = [replace(i, pairs, lambda load: load) for i in stage.written(target)]
        return tirx.BufferStore(target, element(own, [self.r, self.t, lane]), where)

    def _in_chunks(self, dtype: str, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Copy a vector, 16 bytes at a time."""
        at_once = lanes_at_once(dtype, self.width)

        def chunk(number: ir.Expr) -> tirx.Stmt:
            return loop("lane", at_once, lambda lane: body(number * at_once + lane), VECTORIZED)

        return loop("chunk", self.width // at_once, chunk, UNROLLED)

    def _loads(self) -> list[tuple[Stage, ir.TensorLoad]]:
        """List what is read in vectors, each once."""
        step, lane = tirx.Var("step", "int64"), tirx.Var("lane", "int64")
        found: list[tuple[Stage, ir.TensorLoad, ir.Expr]] = []
        for stage, axes in zip(self.stages, self.axes, strict=True):
            for load in stage.loads:
                if not self._is_in_vectors(stage, load, axes[-1]):
                    continue
                place = replace(load, self._element(stage, step, lane), lambda load: load)
                if not any(tvm_ffi.structural_equal(place, other) for *_, other in found):
                    found.append((stage, load, place))
        return [(stage, load) for stage, load, _ in found]

    def _is_in_vectors(self, stage: Stage, load: ir.TensorLoad, axis: Axis) -> bool:
        """Whether a load is read in vectors, rather than where it is computed with."""
        return is_vector(self.block.program, load, axis)

    def _read(self, stage: Stage, load: ir.TensorLoad) -> Read:
        """Choose the registers: a row's own, if a stage does nothing but keep what is read."""
        streamed = is_streamed(load, stage.rows)
        row = None
        if streamed and self._is_copy(stage, load):
            row = self.block.row_in_registers(stage.targets[0])
        if row is not None:
            return Read(stage, load, row, True, True)
        size = self.width * (self.ahead if streamed else 1)
        return Read(stage, load, self._registers(load.source, size), False, streamed)

    def _is_copy(self, stage: Stage, load: ir.TensorLoad) -> bool:
        return (
            stage.is_map
            and stage.values[0].same_as(load)
            and self.block.program.is_internal(stage.targets[0])
        )

    def _is_read(self, stage: Stage) -> bool:
        return any(read.is_row and read.stage is stage for read in self.reads)

    def _registers(self, buffer: ir.Var, size: int) -> ir.Var:
        threads = self.block.geometry.threads
        return self.block.scratch(
            [threads, size], str(buffer.dtype), f"{buffer.name}_vector", "local"
        )

    def _slot(self, read: Read, number: ir.Expr, step: ir.Expr, lane: ir.Expr) -> list[ir.Expr]:
        vector = step if read.is_row else number if read.is_streamed else integer(0)
        return [self.r, self.t, vector * self.width + lane]

    def _element(self, stage: Stage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        """Say where on a stage's axes an element of a vector lies."""
        axes = self._axes(stage)
        if (axes[-1].size or 0) % self.width == 0:
            return self._side(stage, step, lane)
        flat = (step * self.block.geometry.threads + self.t) * self.width + lane
        return self.block.pairs(stage, bind(axes, unflatten(flat, axes)), self.r)

    def _side(self, stage: Stage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        """Say the same beside the vector's first element, out of the last axis if it ends."""
        axes = self._axes(stage)
        flat = (step * self.block.geometry.threads + self.t) * self.width
        *outer, last = unflatten(flat, axes)
        return self.block.pairs(stage, bind(axes, [*outer, last + lane]), self.r)

    def _axes(self, stage: Stage) -> list[Axis]:
        return next(a for s, a in zip(self.stages, self.axes, strict=True) if s is stage)
