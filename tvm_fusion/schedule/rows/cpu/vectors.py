"""Stages of one row, or of a vector of rows, as vector statements over row-local buffers."""

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, sym, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import substitute, variables
from ....core.tir.loops import Body, index, loop, product, sequence, store_all, update_in_turn
from ....program.lane_conditions import decide_for_lanes
from ....program.stage import Axis
from ...math.half_math import HALF_TYPES
from ...math.vector_functions import decay, half_decay
from ...math.vector_math import makes_vectors, vector_math
from ..program.combiner import Combiner
from ..program.emit import Pairs, bind, flatten, replace
from ..program.passes import Pass, private_buffers
from ..program.row_program import RowProgram, RowStage
from ..program.softmax import decaying

AtLane = Callable[[ir.Expr], Pairs]


class CpuRowVectors:
    """Emit stages at given positions; intermediate rows live in local buffers.

    Parameters
    ----------
    row
        ``lane -> indices`` of the row that a lane computes.
    row_lanes
        Number of rows if lanes are rows: every row buffer then holds that many.
    """

    def __init__(
        self,
        program: RowProgram,
        passes: Sequence[Pass],
        row: Callable[[ir.Expr], list[ir.Expr]],
        row_lanes: int | None = None,
    ):
        self.program, self._row, self._row_lanes = program, row, row_lanes
        self._analyzer = sym.Analyzer()
        self._decaying = decaying(program)
        is_half = all(str(b.dtype) in HALF_TYPES for b in program.outputs)
        self._decay = half_decay if is_half else decay
        self._private = private_buffers(program, passes)
        self._local: dict[ir.Var, ir.Var] = {}
        self._partial: dict[ir.Var, ir.Var] = {}
        self._partials: list[ir.Var] = []

    @property
    def buffers(self) -> list[ir.Var]:
        """All buffers used so far."""
        return [*self._local.values(), *self._partials]

    def update(
        self,
        stage: RowStage,
        at: AtLane,
        count: ir.Expr,
        size: int,
        first_new: ir.Expr | None = None,
        part: int = 0,
    ) -> tirx.Stmt:
        """Compute some lanes of a map, or combine them with the partial results of a reduction.

        Parameters
        ----------
        at
            ``lane -> axes' values``.
        count
            Number of lanes, at most ``size``; a constant makes vectors.
        size
            Lanes of the partial results.
        first_new
            First lane that a reduction has not combined yet; earlier ones are masked.
        part
            Which of several vectors of partial results: each waits for its own sums alone.
        """

        def body(lane: ir.Expr) -> tirx.Stmt:
            pairs = self._pairs(stage, at, lane)
            values = [self._value(v, pairs, lane, size) for v in stage.values]
            if stage.combine is None:
                return self._store(stage, pairs, lane, values, size)
            if first_new is not None:
                values = [
                    tirx.Select(lane >= first_new, value, start)
                    for value, start in zip(values, stage.init, strict=True)
                ]
            partial = [self._partial_of(target, size) for target in stage.targets]
            place = lane + part * size if part else lane
            return update_in_turn(
                partial,
                [place],
                stage.combine([tirx.BufferLoad(p, [place]) for p in partial], values),
            )

        return lanes_of(count, body)

    def fold(self, stage: RowStage, size: int, parts: int) -> tirx.Stmt:
        """Combine several vectors of partial results into the first one."""
        partial = [self._partial_of(target, size) for target in stage.targets]
        return sequence(
            [
                lanes_of(index(size), _halve(stage.combine, partial, partial, part * size))
                for part in range(1, parts)
            ]
        )

    def start(self, stage: RowStage, size: int) -> tirx.Stmt:
        """Initialize the partial results of a reduction with its neutral element."""
        partial = [self._partial_of(target, size) for target in stage.targets]
        return lanes_of(index(size), lambda lane: store_all(partial, [lane], stage.init))

    def finish(self, stage: RowStage, at: AtLane, count: ir.Expr, size: int) -> tirx.Stmt:
        """Store partial results, each of which is the result of a lane."""

        def body(lane: ir.Expr) -> tirx.Stmt:
            partial = [tirx.BufferLoad(self._partial_of(t, size), [lane]) for t in stage.targets]
            return self._store(stage, self._pairs(stage, at, lane), lane, partial, size)

        return lanes_of(count, body)

    def combine(self, stage: RowStage, at: AtLane, size: int) -> tirx.Stmt:
        """Combine the partial results of all lanes, in halves, and store the result."""
        stmts = []
        partial = [self._partial_of(target, size) for target in stage.targets]
        while size > 1:
            size //= 2
            halves = [self._new_partial(p, size) for p in partial]
            stmts.append(lanes_of(index(size), _halve(stage.combine, partial, halves, size)))
            partial = halves
        zero = index(0)
        values = [tirx.BufferLoad(p, [zero]) for p in partial]
        stmts.append(self._store(stage, self._pairs(stage, at, zero), zero, values, 1))
        return sequence(stmts)

    def _pairs(self, stage: RowStage, at: AtLane, lane: ir.Expr) -> Pairs:
        return [*bind(stage.rows, self._row(lane)), *at(lane)]

    def _value(self, expr: ir.Expr, pairs: Pairs, lane: ir.Expr, size: int) -> ir.Expr:
        def redirect(load: ir.TensorLoad) -> ir.Expr:
            if not self.program.is_internal(load.source):
                return load
            return tirx.BufferLoad(*self._element(load.source, load.indices, lane, size))

        found = replace(self._with_decays(expr, pairs, lane), pairs, redirect)
        if isinstance(lane, ir.Var):  # parts of a concatenation: most vectors are of one part
            found = decide_for_lanes(found, [Axis(lane, index(size))], self._analyzer)
        return vector_math(found, lane)

    def _with_decays(self, expr: ir.Expr, pairs: Pairs, lane: ir.Expr) -> ir.Expr:
        """Lower exponentials of softmax to their fast form, if they vary by lane."""

        def lower(call: ir.Call) -> ir.Expr:
            if not any(call.same_as(other) for other in self._decaying):
                return call
            varies = any(v.same_as(lane) for v in variables(substitute(call, dict(pairs))))
            return self._decay(call.args[0]) if varies else call

        return tvm_ffi.structural_map(expr, (ir.Call, lower), order="post")

    def _store(
        self, stage: RowStage, pairs: Pairs, lane: ir.Expr, values: Sequence[ir.Expr], size: int
    ) -> tirx.Stmt:
        stmts = []
        for target, written, value in zip(stage.targets, stage.indices, values, strict=True):
            indices = [replace(index, pairs) for index in written]
            if self.program.is_internal(target):
                own, place = self._element(target, indices, lane, size)
            else:
                own, place = target, indices
            stmts.append(tirx.BufferStore(own, value, place))
        return sequence(stmts)

    def _element(
        self, buffer: ir.Var, indices: Sequence[ir.Expr], lane: ir.Expr, size: int
    ) -> tuple[ir.Var, list[ir.Expr]]:
        """Return the place of an element of an internal buffer in the row's local buffers."""
        rows = len(self.program.rows)
        inner = list(indices)[rows:]
        if buffer in self._private:
            return self._local_of(buffer, [size]), [lane if size > 1 else index(0)]
        shape = list(buffer.shape)[rows:]
        if self._row_lanes is not None:
            return self._local_of(buffer, [*shape, self._row_lanes]), [*inner, lane]
        # Flat: TVM infers bounds of an allocation along each dimension, and where coordinates are
        # remainders by a symbolic extent, these bounds mention loop variables.
        place = flatten(inner, shape)
        return self._local_of(buffer, [product(shape)]), [place]

    def _local_of(self, buffer: ir.Var, shape: Sequence[ir.Expr | int]) -> ir.Var:
        if buffer not in self._local:
            own = scratch(list(shape), str(buffer.dtype), buffer.name, scope="local")
            self._local[buffer] = own
        return self._local[buffer]

    def _partial_of(self, target: ir.Var, size: int) -> ir.Var:
        if target not in self._partial:
            self._partial[target] = self._new_partial(target, size)
        return self._partial[target]

    def _new_partial(self, like: ir.Var, size: int) -> ir.Var:
        self._partials.append(scratch([size], str(like.dtype), f"{like.name}_{size}"))
        return self._partials[-1]


def _halve(combine: Combiner | None, whole: list[ir.Var], halves: list[ir.Var], size: int) -> Body:
    """Combine the elements of vectors with those ``size`` later."""

    def body(lane: ir.Expr) -> tirx.Stmt:
        low = [tirx.BufferLoad(w, [lane]) for w in whole]
        high = [tirx.BufferLoad(w, [lane + size]) for w in whole]
        return update_in_turn(halves, [lane], combine(low, high) if combine else low)

    return body


def lanes_of(count: ir.Expr, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Write lanes as a vector, or as a loop that LLVM may vectorize where TVM could not."""
    stmt = loop("lane", count, body)
    if not isinstance(stmt, tirx.For) or not isinstance(count, tirx.IntImm):
        return stmt
    if not makes_vectors(stmt.body, stmt.loop_var):
        return stmt
    return tirx.For(stmt.loop_var, stmt.min, stmt.extent, tirx.ForKind.VECTORIZED, stmt.body)
