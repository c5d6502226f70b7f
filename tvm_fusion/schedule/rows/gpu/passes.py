"""Passes over the rows of a thread block: loops of its threads, then block reductions.

for r in the rows of a thread:
    for s in reductions:  term_s[r] = init
    for item:                                   element or vector item * threads + t of the row
        for stage of the pass:
            map:          y[r, i] = f(x[r, i], results of earlier passes)
            reduction s:  term_s[r] = combine(term_s[r], f(x[r, i]))
result_s[r] = all-reduce of term_s[r] over the threads of row r     shuffles, then shared memory
outputs among the reductions:  C[r] = result_s[r]

A reduction with several results in a row (pooling) has a thread for each: no block reduction.
"""

from collections.abc import Callable, Container, Sequence
from functools import cached_property

from tvm import ir, sym, tirx

from ....core.tir.loops import index, loop, product, sequence, store_all, update_all
from ....program.stage import Axis
from ...gpu.launch import VECTOR_TYPES
from ...gpu.threads.block_reduce import Reduction, block_all_reduce
from ...index.address import offset
from ..program.emit import Pairs, bind, nest, replace, unflatten, volume
from ..program.passes import Pass
from ..program.row_program import RowStage
from .row_vectors import RowVectorLoad
from .storage import items_per_thread
from .thread_block import Position, ThreadBlock
from .vector_loop import UNROLLED, VectorLoop
from .vectorize import RowOrigin, is_streamed


class UnalignedLoop(VectorLoop):
    """Loop over the aligned vectors that cover a row.

    Full vectors are one access; masked lanes of the head and tail vectors are neither reduced nor
    stored. Nothing outside a buffer is loaded: a vector that crosses its end is loaded by elements
    instead. Masked lanes compute the nearest element inside. Conditions that hold in all vectors
    but the ends vanish once the loop is unrolled.
    """

    @property
    def is_unrolled(self) -> bool:
        """Vectors of rows begin elsewhere in what rows share, unless it stays in registers."""
        return self.block.config.keeps_shared and super().is_unrolled

    @property
    def _begin(self) -> ir.Expr:
        """Position of the row in memory, modulo whole vectors."""
        return self._position(self.block.pairs(self._origin.stage, [], self.r))

    @cached_property
    def _before(self) -> ir.Expr:
        """Elements of the head vector before the row, as of all rows that a block takes in turn."""
        begin = self._begin
        if self.block.config.keeps_shared:
            begin = self._position(self.block.first_row(self._origin.stage, self.r))
        return sym.Analyzer().simplify(tirx.floormod(begin, index(self.width)))

    @property
    def _origin(self) -> RowOrigin:
        origin = self.block.vectorized(self.stages[0].loop_axes).origin
        if origin is None:
            raise ValueError(f"rows of {self.stages[0].name} are aligned")
        return origin

    def _position(self, row: Pairs) -> ir.Expr:
        return sym.Analyzer().simplify(replace(self._origin.position, row))

    @cached_property
    def _size(self) -> ir.Expr:
        return index(self.stages[0].loop_axes[0].extent)

    def _is_in_vectors(self, stage: RowStage, load: ir.TensorLoad, axis: Axis) -> bool:
        # What rows share has another offset in a vector for each row, but for those of a block.
        is_alike = is_streamed(load, stage.rows) or self.block.config.keeps_shared
        return is_alike and super()._is_in_vectors(stage, load, axis)

    def _exists(self, step: ir.Expr) -> ir.Expr:
        return self._first(step) < self._size

    def _is_term(self, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        return self._is_inside(step, lane)

    def _copy(self, read: RowVectorLoad, number: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        if not read.is_streamed:
            return self._by_elements(read, number, step)
        whole = super()._copy(read, number, step)
        buffer, stage = read.load.source, read.stage
        size = product(buffer.shape)
        if sym.Analyzer().can_prove_equal(tirx.floormod(size, index(self.width)), 0):
            return whole
        first = self._placed(read, self._contiguous(stage, step, index(0)), step, index(0))
        end = offset(buffer, first.indices) + self.width
        is_in_memory = tirx.Or(self._first(step) + self.width <= self._size, end <= size)
        return tirx.IfThenElse(is_in_memory, whole, self._by_elements(read, number, step))

    def _write(self, target: ir.Var, own: ir.Var, step: ir.Expr) -> tirx.Stmt:
        first = self._first(step)

        def one(lane: ir.Expr) -> tirx.Stmt:
            store = self._store(target, own, step, lane)
            return tirx.IfThenElse(self._is_inside(step, lane), store, None)

        ends = self.block.once(loop("lane", self.width, one, UNROLLED), self.r)
        is_whole = tirx.And(first >= 0, first + self.width <= self._size)
        return tirx.IfThenElse(is_whole, super()._write(target, own, step), ends)

    def _element(self, stage: RowStage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        inside = tirx.min(tirx.max(self._first(step) + lane, index(0)), self._size - 1)
        return self.block.pairs(stage, bind(self._axes(stage), [inside]), self.r)

    def _contiguous(self, stage: RowStage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        # In terms of the vector's number, so that TVM can prove the access aligned.
        number = tirx.floordiv(self._begin, index(self.width)) + self._number(step)
        at = number * self.width + lane - self._begin
        return self.block.pairs(stage, bind(self._axes(stage), [at]), self.r)

    def _is_inside(self, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        at = self._first(step) + lane
        return tirx.And(at >= 0, at < self._size)

    def _first(self, step: ir.Expr) -> ir.Expr:
        """Position in the row of a vector's first element; negative in the head vector."""
        return self._number(step) * self.width - self._before


# Vectorized loops whose last step is computed by all threads of a row, and masked.
#
# load: vector min(number, last) # no branch: issued with the loads of all other steps reduce: terms
# of threads without a vector are neutral store: if number <= last
class MaskedTailLoop(VectorLoop):
    """Loop over aligned vectors; threads that have none left compute the last one of the row.

    A branch around the last step keeps its loads from those of the others: what rows share, such as
    the scale of a norm, then arrives a second time late. Conditions of the other steps vanish once
    the loop is unrolled.
    """

    def _guard(self, step: ir.Expr) -> ir.Expr | None:
        return None

    def _number(self, step: ir.Expr) -> ir.Expr:
        number = super()._number(step)
        return tirx.Select(self._is_full(step), number, tirx.min(number, index(self.vectors - 1)))

    def _is_term(self, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        return self._has_vector(step)

    def _write(self, target: ir.Var, own: ir.Var, step: ir.Expr) -> tirx.Stmt:
        return tirx.IfThenElse(self._has_vector(step), super()._write(target, own, step), None)

    def _has_vector(self, step: ir.Expr) -> ir.Expr:
        return tirx.Or(self._is_full(step), super()._number(step) < self.vectors)

    def _is_full(self, step: ir.Expr) -> ir.Expr:
        """Whether all threads have a vector in a step: known once the loop is unrolled."""
        return step < self.vectors // self.block.config.threads


def can_mask_tail(block: ThreadBlock, stages: Sequence[RowStage]) -> bool:
    """Whether all that a loop writes to memory is in vectors, so that stores can be masked."""
    vectors = block.vectorized(stages[0].loop_axes)
    return vectors.width > 1 and all(
        block.program.is_internal(target) or str(target.dtype) in VECTOR_TYPES
        for stage in stages
        for target in stage.targets
    )


MAX_UNROLLED = 32  # iterations; arrays in registers need constant indices


def emit_pass(block: ThreadBlock, one: Pass, loops: list[VectorLoop]) -> list[tirx.Stmt]:
    """Write one pass over the rows of a block, then the reductions across its threads.

    Its loop over vectors, if it has one, is added to ``loops``.
    """
    first = one.stages[0]
    each_thread = block.config.each_thread
    if first.inner and first.reduce:
        return [each_thread(lambda r, t: _results(block, first, r, t))]
    reductions = [stage for stage in one.stages if stage.combine is not None]
    stmts = [each_thread(_initialize(block, stage)) for stage in reductions]
    vectors = block.vectorized(first.loop_axes)
    is_unconditional = vectors.is_unconditional and (
        vectors.width > 1 or not block.config.rows_first
    )

    def whole(r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        if not is_unconditional:
            return _elements(block, one.stages, r, t)
        loops.append(_vectors(block, one.stages, r, t))
        return loops[-1].whole()

    stmts.append(each_thread(whole))
    across = [
        Reduction(s.name, s.combine, s.init, block.terms(s), block.results(s))
        for s in reductions
        if s.combine is not None
    ]
    stmts += block_all_reduce(block.config, across, block.scratch)
    for stage in reductions:
        if not block.program.is_internal(stage.targets[0]):
            stmts.append(each_thread(_store_reduction(block, stage)))
    return stmts


def emit_early_loads(
    block: ThreadBlock,
    loops: Sequence[VectorLoop],
    constants: Container[ir.Var],
    is_constant: bool,
) -> list[tirx.Stmt]:
    """Load what rows share before the first pass: constants, or the rest of it.

    Parameters
    ----------
    constants
        Inputs that no kernel writes.
    is_constant
        Whether to load these, or the others.
    """
    found: list[tirx.Stmt] = []
    for one in loops:
        reads = [x for x in one.early if (x.load.source in constants) == is_constant]
        if reads:
            found.append(block.config.each_thread(_copies(one, reads)))
    return found


def emit_first_rows(block: ThreadBlock, loops: Sequence[VectorLoop]) -> list[tirx.Stmt]:
    """Load the first rows of a block of several groups, which loads each a group ahead."""
    return [block.config.each_thread(_copies_ahead(one)) for one in loops if one.ahead]


def _copies_ahead(one: VectorLoop) -> Callable[[ir.Expr, ir.Expr], tirx.Stmt]:
    return lambda r, t: one.at(r, t).copies_ahead()


def _copies(
    one: VectorLoop, reads: Sequence[RowVectorLoad]
) -> Callable[[ir.Expr, ir.Expr], tirx.Stmt]:
    return lambda r, t: one.at(r, t).copies(reads)


def _vectors(block: ThreadBlock, stages: Sequence[RowStage], r: ir.Expr, t: ir.Expr) -> VectorLoop:
    """Loop over every ``threads``-th vector of a row, from the thread's own on."""
    is_aligned = block.vectorized(stages[0].loop_axes).origin is None
    is_masked = is_aligned and block.config.mask_tail and can_mask_tail(block, stages)
    loop_class = VectorLoop if is_aligned else UnalignedLoop
    loop_class = MaskedTailLoop if is_masked else loop_class
    return loop_class(block, stages, r, t)


def _elements(block: ThreadBlock, stages: Sequence[RowStage], r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
    """Loop over every ``threads``-th element of a row, from the thread's own on."""
    vectors = block.vectorized(stages[0].loop_axes).axes
    axes = [[stage.loop_axes[i] for i in vectors] for stage in stages]

    def at(flat: ir.Expr, item: ir.Expr) -> tirx.Stmt:
        position = Position(r, t, item)
        return sequence(
            [
                _element(block, stage, bind(own, unflatten(flat, own)), position)
                for stage, own in zip(stages, axes, strict=True)
            ]
        )

    return _items(block, axes[0], t, at)


def _results(block: ThreadBlock, stage: RowStage, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
    """Compute whole results in a thread, where a reduction has several in a row."""
    inner = [stage.inner[i] for i in block.vectorized(stage.inner).axes]
    terms = block.terms(stage)

    def at(flat: ir.Expr, item: ir.Expr) -> tirx.Stmt:
        position = Position(r, t, item)
        known = bind(inner, unflatten(flat, inner))

        def term(terms_at: list[ir.Expr]) -> tirx.Stmt:
            return _element(block, stage, known + bind(stage.reduce, terms_at), position)

        values = [tirx.BufferLoad(b, [r, t]) for b in terms]
        return sequence(
            [
                store_all(terms, [r, t], stage.init),
                nest(stage.reduce, term),
                block.store(stage, block.pairs(stage, known, r), position, values),
            ]
        )

    return _items(block, inner, t, at)


def _items(
    block: ThreadBlock,
    axes: Sequence[Axis],
    t: ir.Expr,
    at: Callable[[ir.Expr, ir.Expr], tirx.Stmt],
) -> tirx.Stmt:
    """Loop over some axes, element by element: ``at(flat position, item)``."""
    if not axes:
        return at(index(0), index(0))
    threads = block.config.threads
    extent = volume(axes)
    count = items_per_thread(axes, threads)

    def item(number: ir.Expr) -> tirx.Stmt:
        flat = number * threads + t
        body = at(flat, number)
        whole = count is not None and count * threads == int(extent)
        return body if whole else tirx.IfThenElse(flat < extent, body, None)

    if count is None:
        number = sym.Analyzer().simplify(tirx.floordiv(extent + (threads - 1), index(threads)))
        return loop("item", number, item)
    unrolled = tirx.ForKind.UNROLLED if count <= MAX_UNROLLED else tirx.ForKind.SERIAL
    return loop("item", count, item, unrolled)


def _element(block: ThreadBlock, stage: RowStage, at: Pairs, position: Position) -> tirx.Stmt:
    """Compute one element of a map, or combine one term of a reduction."""
    pairs = block.pairs(stage, at, position.r)
    values = [block.value(stage, value, pairs, position) for value in stage.values]
    if stage.combine_in_order is None:
        return block.store(stage, pairs, position, values)
    terms = block.terms(stage)
    mine = [position.r, position.t]
    return update_all(
        terms, mine, stage.combine_in_order([tirx.BufferLoad(b, mine) for b in terms], values)
    )


def _initialize(block: ThreadBlock, stage: RowStage):
    return lambda r, t: store_all(block.terms(stage), [r, t], stage.init)


def _store_reduction(block: ThreadBlock, stage: RowStage):
    """Store a reduction's results to memory."""

    def body(r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        values = [tirx.BufferLoad(result, [r]) for result in block.results(stage)]
        position = Position(r, t, index(0))
        return block.store(stage, block.pairs(stage, [], r), position, values)

    return body
