"""Operands of FlashAttention into shared memory: cp.async of vectors, or elements one by one.

each thread, vectors of a tile:  cp.async 16 bytes, zeros behind the last row
                                 or: compute eight elements in registers, store the vector
without cp.async (7.5):          issue: 16 bytes into registers;  store: to shared memory, later
"""

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import coordinates, index, loop, sequence, substitute, when
from ...gpu.launch import VECTOR_BYTES
from ...gpu.memory.cp_async import copy_16
from ...gpu.memory.swizzle import VECTOR, SwizzledRows
from ...gpu.memory.vector_moves import NVIDIA_MOVES, VectorMoves
from .problem import Operand

UNROLLED = tirx.ForKind.UNROLLED
Place = Callable[[ir.Expr], dict[ir.Var, ir.Expr]]


@dataclass(frozen=True, eq=False)
class TileLoads:
    """Loads of the rows of one operand by all threads of a block."""

    operand: Operand  # its elements
    padded: int  # elements of a row in shared memory
    rows: SwizzledRows  # where they go
    # Shared memory, and registers for one vector.
    shared: ir.Var
    vector: ir.Var
    threads: int  # of a block
    thread: ir.Expr  # which
    # Registers for the vectors of a tile, on their way where there is no cp.async.
    held: ir.Var | None = None
    moves: VectorMoves = NVIDIA_MOVES  # how threads move vectors

    def issue(
        self, count: int, first: ir.Expr, place: Place, is_row: Callable[[ir.Expr], ir.Expr] | None
    ) -> tirx.Stmt:
        """Load rows of a tile.

        Parameters
        ----------
        first
            The row in shared memory of the first.
        place
            Position of a row of the tile, a valid one for each.
        is_row
            Whether there is such a row; ``None`` if there always is.
        """
        copied = bool(self.operand.loads)

        def one(number: ir.Expr, row: ir.Expr, vector: ir.Expr) -> tirx.Stmt:
            to = self._place(first, row, vector)
            inside = None if is_row is None else is_row(row)
            at = {**place(row), self.operand.along.var: vector * VECTOR}
            if not copied:
                return self._compute(to, at, inside)
            if self.held is not None:
                to = load(self.held, [number * VECTOR])
            return self._copy(to, at, inside)

        return self._each(count, self._vectors, one)

    def store(self, count: int, first: ir.Expr) -> tirx.Stmt:
        """Store the rows of a tile that are held in registers; parameters as of :meth:`issue`."""
        held = self.held
        if held is None or not self.operand.loads:
            return sequence([])

        def one(number: ir.Expr, row: ir.Expr, vector: ir.Expr) -> tirx.Stmt:
            to = self._place(first, row, vector)
            return self.moves.store(to, load(held, [number * VECTOR]), VECTOR_BYTES)

        return self._each(count, self._vectors, one)

    @property
    def _vectors(self) -> int:
        """Vectors of a row."""
        operand = self.operand
        return (operand.extent if operand.loads else self.padded) // VECTOR

    def pad(self, count: int) -> tirx.Stmt | None:
        """Store the zeros behind the elements of copied rows once; ``None`` if there are none."""
        begin, end = self.operand.extent // VECTOR, self.padded // VECTOR
        if not self.operand.loads or begin == end:
            return None

        def one(_number: ir.Expr, row: ir.Expr, vector: ir.Expr) -> tirx.Stmt:
            return self._store_vector(self._place(index(0), row, vector + begin))

        return sequence([self._zeros(), self._each(count, end - begin, one)])

    def _zeros(self) -> tirx.Stmt:
        zero = tirx.const(0, str(self.vector.ty.dtype))

        def lane(number: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.vector, zero, [number])

        return loop("lane", VECTOR, lane, UNROLLED)

    def _store_vector(self, to: ir.TensorLoad) -> tirx.Stmt:
        return self.moves.store(to, load(self.vector, [index(0)]), VECTOR_BYTES)

    def _place(self, first: ir.Expr, row: ir.Expr, vector: ir.Expr) -> ir.TensorLoad:
        return load(self.shared, [self.rows.element(first + row, vector, row)])

    def _each(
        self, rows: int, vectors: int, body: Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        total = rows * vectors

        def item(number: ir.Expr) -> tirx.Stmt:
            flat = number * self.threads + self.thread
            row, vector = coordinates(flat, [rows, vectors])
            stmt = body(number, row, vector)
            return stmt if total % self.threads == 0 else when(flat < total, stmt)

        # What is computed is too long to be written out.
        kind = UNROLLED if self.operand.loads else tirx.ForKind.SERIAL
        return loop("item", -(-total // self.threads), item, kind)

    def _copy(
        self, to: ir.TensorLoad, at: dict[ir.Var, ir.Expr], inside: ir.Expr | None
    ) -> tirx.Stmt:
        stmts = []
        for x in self.operand.loads:
            source = substitute(x, at)
            if self.held is None:
                stmt = copy_16(to, source, inside)
            else:
                is_loaded = tirx.const(True) if inside is None else inside
                stmt = self.moves.load_or_zero(to, source, VECTOR_BYTES, is_loaded)
            for condition in self.operand.conditions(x):
                stmt = when(substitute(condition, at), stmt)
            stmts.append(stmt)
        return sequence(stmts)

    def _compute(
        self, to: ir.TensorLoad, at: dict[ir.Var, ir.Expr], inside: ir.Expr | None
    ) -> tirx.Stmt:
        along, start = self.operand.along.var, at[self.operand.along.var]
        dtype = str(self.vector.ty.dtype)

        def element(lane: ir.Expr) -> tirx.Stmt:
            value = self.moves.held(substitute(self.operand.element, {**at, along: start + lane}))
            conditions = [] if inside is None else [inside]
            if self.operand.extent % VECTOR or self.operand.extent != self.padded:
                conditions.append(start + lane < self.operand.extent)
            if conditions:
                value = tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0, dtype))
            return tirx.BufferStore(self.vector, value, [lane])

        return sequence(
            [
                loop("lane", VECTOR, element, UNROLLED),
                self._store_vector(to),
            ]
        )
