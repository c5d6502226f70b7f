"""Vectorized loops over the rows of a thread block.

for group of LOADS_IN_FLIGHT vectors, each `threads` vectors apart:
    for vector: load what only this row needs -> registers          # 16 bytes an access
    for vector: load what rows share; for lane: compute; store results

What rows share may be loaded early, before the first pass, where there is little of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace as replace_fields

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ....core.tir.loops import NEAR, index, loop, sequence, update_all, vectorized
from ...math.half_math import HALF_TYPES
from ..program.emit import Pairs, replace
from ..program.row_program import RowStage
from .reductions.half_precision import without_round_trips
from .row_vectors import RowVectorLoad, RowVectors
from .thread_block import Position
from .vectorize import lanes_per_access

UNROLLED = tirx.ForKind.UNROLLED


class VectorLoop(RowVectors):
    """Loop over every ``threads``-th vector of a row, from the thread's own on.

    Only copies are vector statements, so it does not matter which arithmetic a GPU's language has
    on vectors.
    """

    def whole(self) -> tirx.Stmt:
        """Write the loop: some vectors at a time, their loads first."""
        if self.is_unrolled:
            starts = range(0, self.steps, self.in_flight)
            return sequence(
                [self._group(index(s), min(self.in_flight, self.steps - s)) for s in starts]
            )
        groups = -(-self.steps // self.in_flight)
        return loop("group", groups, lambda g: self._group(g * self.in_flight, self.in_flight))

    @property
    def early(self) -> list[RowVectorLoad]:
        """What is loaded before the first pass."""
        return [read for read in self.reads if read.is_early]

    def at(self, r: ir.Expr, t: ir.Expr) -> VectorLoop:
        """Return the same loop with other variables of the row and the thread."""
        other = copy(self)
        other.__dict__.pop("_before", None)  # of the row and the thread
        other.r, other.t = r, t
        return other

    def copies(self, reads: Sequence[RowVectorLoad]) -> tirx.Stmt:
        """Load all vectors of a thread."""

        def one(number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
            return sequence([self._copy(read, number, step) for read in reads])

        return self._each(index(0), self.steps, one)

    def _group(self, first: ir.Expr, count: int) -> tirx.Stmt:
        streamed = [read for read in self.reads if read.is_streamed]

        def read_all(number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
            return sequence([self._take(read, number, step) for read in streamed])

        phases = [read_all, self._vector] if streamed else [self._vector]
        stmts = [self._each(first, count, phase) for phase in phases]
        if self.ahead:
            has_next = self.block.turn + 1 < self.block.turns
            read = self._each(first, count, lambda _number, step: self._next(step))
            stmts.insert(1, tirx.IfThenElse(has_next, read, None))
        return sequence(stmts)

    @property
    def ahead(self) -> list[RowVectorLoad]:
        """What is loaded a group of rows ahead."""
        return [read for read in self.reads if read.ahead is not None]

    def copies_ahead(self) -> tirx.Stmt:
        """Load what a thread needs of its first row."""
        return self._each(index(0), self.steps, lambda _number, step: self._first_of(step))

    def _first_of(self, step: ir.Expr) -> tirx.Stmt:
        reads = [replace_fields(read, registers=read.ahead) for read in self.ahead]
        return sequence([self._copy(read, step, step) for read in reads])

    def _next(self, step: ir.Expr) -> tirx.Stmt:
        turn = self.block.turn
        self.block.turn = turn + 1
        stmt = self._first_of(step)
        self.block.turn = turn
        return stmt

    def _take(self, read: RowVectorLoad, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Load a vector, or take the one that was loaded ahead."""
        if read.ahead is None:
            return self._copy(read, number, step)

        def one(lane: ir.Expr) -> tirx.Stmt:
            place = self._slot(read, number, step, lane)
            return tirx.BufferStore(read.registers, tirx.BufferLoad(read.ahead, place), place)

        return self._in_accesses(str(read.registers.dtype), one)

    def _each(
        self, first: ir.Expr, count: int, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Run ``body(number in the group, step)`` for each vector of a group."""

        def step(number: ir.Expr) -> tirx.Stmt:
            at = first + number
            stmt = body(number, at)
            guard = self._guard(at)
            if guard is not None:
                stmt = tirx.IfThenElse(guard, stmt, None)
            is_own_step = self.block.is_own_step(self.stages, at)
            return stmt if is_own_step is None else tirx.IfThenElse(is_own_step, stmt, None)

        return loop("step", count, step, UNROLLED)

    def _guard(self, step: ir.Expr) -> ir.Expr | None:
        """Return the condition around a step; ``None`` if there is none."""
        return self._exists(step)

    def _exists(self, step: ir.Expr) -> ir.Expr | None:
        """Whether the thread has a vector left; ``None`` if all have."""
        threads = self.block.config.threads
        if self.steps * threads == self.vectors and self.steps % self.in_flight == 0:
            return None
        # The first condition is known where the loop is unrolled.
        return tirx.Or(step < self.vectors // threads, step * threads + self.t < self.vectors)

    def _vector(self, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Compute the elements of one vector."""
        shared = [
            self._copy(x, number, step) for x in self.reads if not (x.is_streamed or x.is_early)
        ]

        def lane(lane: ir.Expr) -> tirx.Stmt:
            loaded = tuple(
                (
                    self._placed(read, self._element(read.stage, step, lane), step, lane),
                    self._loaded(read, number, step, lane),
                )
                for read in self.reads
            )
            position = Position(self.r, self.t, step * self.width + lane, loaded)
            stmts = [
                self._stage(s, step, lane, position) for s in self.stages if not self._is_read(s)
            ]
            return sequence(stmts) if stmts else tirx.Evaluate(index(0))

        return sequence(
            [
                *self._keep_packed(step),
                *shared,
                loop("lane", self.width, lane, UNROLLED),
                *(self._write(target, own, step) for target, own in self.results),
            ]
        )

    def _keep_packed(self, step: ir.Expr) -> list[tirx.Stmt]:
        """Make the compiler repeat conversions of an earlier pass, not keep their results."""
        block = self.block
        if not block.config.keep_packed:
            return []
        found: list[ir.Var] = []
        for stage in self.stages:
            for load in stage.loads:
                buffer = load.source
                if buffer in found or not block.program.is_internal(buffer):
                    continue
                if not any(s is block.program.producer(buffer) for s in self.stages):
                    found.append(buffer)
        rows = [row for b in found if (row := block.row_in_registers(b)) is not None]
        halves = [row for row in rows if str(row.dtype) in HALF_TYPES]
        if self.width < 2 or len(halves) == 0:
            return []
        first = step * self.width
        return [
            keep_packed(tirx.BufferLoad(row, [self.r, self.t, first]), self.width // 2)
            for row in halves
        ]

    def _stage(
        self, stage: RowStage, step: ir.Expr, lane: ir.Expr, position: Position
    ) -> tirx.Stmt:
        block = self.block
        pairs = self._element(stage, step, lane)
        values = [block.value(stage, value, pairs, position) for value in stage.values]
        if any(map(self._is_widened, self.reads)):
            values = [without_round_trips(value) for value in values]
        mine = [self.r, self.t]
        if stage.combine_in_order is not None:
            terms = block.terms(stage)
            old = [tirx.BufferLoad(b, mine) for b in terms]
            update = update_all(terms, mine, stage.combine_in_order(old, values))
            is_term = self._is_term(step, lane)
            return update if is_term is None else tirx.IfThenElse(is_term, update, None)
        own = next((own for target, own in self.results if target.same_as(stage.targets[0])), None)
        if own is None:
            return block.store(stage, pairs, position, values)
        return tirx.BufferStore(own, values[0], [*mine, lane])

    def _is_term(self, step: ir.Expr, lane: ir.Expr) -> ir.Expr | None:
        """Whether an element is a term of reductions; ``None`` if all are.

        An update behind a branch is one instruction with a predicate; a choice of the term is more.
        """
        return None

    def _copy(self, read: RowVectorLoad, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Load one vector."""
        if self._is_widened(read):
            return self._by_elements(read, number, step)

        def one(lane: ir.Expr) -> tirx.Stmt:
            value = self._placed(read, self._contiguous(read.stage, step, lane), step, lane)
            return tirx.BufferStore(read.registers, value, self._slot(read, number, step, lane))

        made = self._in_accesses(str(read.load.source.dtype), one)
        if read.is_streamed or not isinstance(made, tirx.For):
            return made
        return tirx.For(
            made.loop_var, made.min, made.extent, made.kind, made.body, annotations={NEAR: True}
        )

    def _by_elements(self, read: RowVectorLoad, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Load a vector element by element, each converted where registers are wider."""

        def one(lane: ir.Expr) -> tirx.Stmt:
            value = self._placed(read, self._element(read.stage, step, lane), step, lane)
            value = tirx.Cast(str(read.registers.dtype), value) if self._is_widened(read) else value
            return tirx.BufferStore(read.registers, value, self._slot(read, number, step, lane))

        return loop("lane", self.width, one, UNROLLED)

    def _loaded(
        self, read: RowVectorLoad, number: ir.Expr, step: ir.Expr, lane: ir.Expr
    ) -> ir.Expr:
        """Read an element from the registers that it was loaded into."""
        value = tirx.BufferLoad(read.registers, self._slot(read, number, step, lane))
        return tirx.Cast(str(read.load.source.dtype), value) if self._is_widened(read) else value

    def _placed(self, read: RowVectorLoad, pairs: Pairs, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        """Write a load whose indices may be results of the row, such as rows of a table."""
        position = Position(self.r, self.t, step * self.width + lane, ())
        return self.block.value(read.stage, read.load, pairs, position)

    def _write(self, target: ir.Var, own: ir.Var, step: ir.Expr) -> tirx.Stmt:
        """Store one vector."""
        return self.block.once(
            self._in_accesses(str(target.dtype), lambda lane: self._store(target, own, step, lane)),
            self.r,
        )

    def _store(self, target: ir.Var, own: ir.Var, step: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        """Store one element of a vector, contiguous with its first."""
        stage = next(s for s in self.stages if target in s.targets)
        pairs = self._contiguous(stage, step, lane)
        where = [replace(i, pairs) for i in stage.written(target)]
        return tirx.BufferStore(target, tirx.BufferLoad(own, [self.r, self.t, lane]), where)

    def _in_accesses(self, dtype: str, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Copy a vector in accesses of 16 bytes."""
        at_once = lanes_per_access(dtype, self.width)

        def access(number: ir.Expr) -> tirx.Stmt:
            return vectorized(at_once, lambda lane: body(number * at_once + lane))

        return loop("access", self.width // at_once, access, UNROLLED)


# Keep half-type numbers packed in registers, two in 32 bits, from one pass over them to the next.
#
# CUDA's compiler takes the conversion to float32 of one pass for that of the next and keeps its
# result: twice the registers, which spill. An empty ``asm`` that may change the words makes it
# convert again, one instruction an element.
KEEP_PACKED = "tvm_fusion_keep_packed"
_SOURCE = """
__device__ __forceinline__ void {name}(void* row) {{
  unsigned* words = (unsigned*)row;
  asm("// packed" : {operands});
}}
"""


def keep_packed(first: ir.TensorLoad, words: int) -> tirx.Stmt:
    """Hide 32-bit words of a register buffer from the compiler (an ``asm`` barrier)."""
    name = f"{KEEP_PACKED}_{words}"
    operands = ", ".join(f'"+r"(words[{i}])' for i in range(words))
    source = _SOURCE.format(name=name, operands=operands)
    return tirx.Evaluate(cuda_func_call(name, tirx.address_of(first), source_code=source))
