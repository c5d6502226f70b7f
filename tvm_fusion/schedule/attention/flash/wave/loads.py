"""Values of FlashAttention into LDS for AMD's matrix cores: rows of keys, turned by registers.

    issue    for each of eight keys:   held[key] = some adjacent columns     global, vectors
    store    for each of the columns:  chunk = its keys of held              registers
                                       tile[column, chunk] = chunk           16 bytes, LDS

Fragments want neighbouring keys of a column in a lane, and no instruction of LDS turns them.
Neighbouring threads have chunks of one column, which lie in different banks.
"""

from collections.abc import Callable

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import coordinates, index, loop, sequence, substitute, unrolled, when
from ....gpu.memory.swizzle import VECTOR
from ..loads import UNROLLED, Place, TileLoads

HALF_BYTES = 2
MOST_COLUMNS, LEAST_COLUMNS = 4, 2  # of a thread at a time


class TurnedTileLoads(TileLoads):
    """Loads of values; their rows in LDS are columns of keys."""

    @staticmethod
    def columns(keys: int, padded: int, threads: int) -> int:
        """Count the columns of a thread's part: as many as leave work to all threads."""
        count = MOST_COLUMNS
        while count > LEAST_COLUMNS and keys // VECTOR * padded // count < threads:
            count //= 2
        return count

    @classmethod
    def held_size(cls, keys: int, padded: int, threads: int) -> int:
        """Count the registers of elements that are on their way."""
        columns = cls.columns(keys, padded, threads)
        return -(-(keys // VECTOR * padded // columns) // threads) * VECTOR * columns

    def issue(
        self, count: int, first: ir.Expr, place: Place, is_row: Callable[[ir.Expr], ir.Expr] | None
    ) -> tirx.Stmt:
        """Load rows of a tile; what is computed is stored at once. Parameters as of TileLoads."""
        if not self.operand.loads:
            return self._computed(count, place, is_row)
        columns, held = self.columns(count, self.padded, self.threads), self.held
        assert held is not None

        def part(number: ir.Expr, chunk: ir.Expr, group: ir.Expr) -> tirx.Stmt:
            def one(n: ir.Expr) -> tirx.Stmt:
                row = chunk * VECTOR + n
                inside = tirx.const(True) if is_row is None else is_row(row)
                at = {**place(row), self.operand.along.var: group * columns}
                to = load(held, [(number * VECTOR + n) * columns])
                stmts = []
                for x in self.operand.loads:
                    source, size = substitute(x, at), columns * HALF_BYTES
                    stmt = self.moves.load_or_zero(to, source, size, inside)
                    for condition in self.operand.conditions(x):
                        stmt = when(substitute(condition, at), stmt)
                    stmts.append(stmt)
                return sequence(stmts)

            return unrolled("key", VECTOR, one)

        return self._parts(count, self.operand.extent // columns, part)

    def store(self, count: int, first: ir.Expr) -> tirx.Stmt:
        """Store the rows of a tile that are held in registers; parameters as of :meth:`issue`."""
        if not self.operand.loads:
            return sequence([])
        columns, held = self.columns(count, self.padded, self.threads), self.held
        assert held is not None

        def part(number: ir.Expr, chunk: ir.Expr, group: ir.Expr) -> tirx.Stmt:
            def one(n: ir.Expr) -> tirx.Stmt:
                def key(k: ir.Expr) -> tirx.Stmt:
                    value = load(held, [(number * VECTOR + k) * columns + n])
                    return tirx.BufferStore(self.vector, value, [k])

                turned = unrolled("key", VECTOR, key)
                return sequence([turned, self._stored(group * columns + n, chunk)])

            return unrolled("column", columns, one)

        return self._parts(count, self.operand.extent // columns, part)

    def _computed(
        self, count: int, place: Place, is_row: Callable[[ir.Expr], ir.Expr] | None
    ) -> tirx.Stmt:
        dtype = str(self.vector.ty.dtype)

        def part(_number: ir.Expr, chunk: ir.Expr, column: ir.Expr) -> tirx.Stmt:
            def key(k: ir.Expr) -> tirx.Stmt:
                row = chunk * VECTOR + k
                at = {**place(row), self.operand.along.var: column}
                value = self.moves.held(substitute(self.operand.element, at))
                if is_row is not None:
                    value = tirx.if_then_else(is_row(row), value, tirx.const(0, dtype))
                return tirx.BufferStore(self.vector, value, [k])

            return sequence([loop("key", VECTOR, key, UNROLLED), self._stored(column, chunk)])

        return self._parts(count, self.operand.extent, part)

    def pad(self, count: int) -> tirx.Stmt | None:
        """Store the zeros of columns behind the last one; ``None`` if there are none."""
        begin = self.operand.extent

        def part(_number: ir.Expr, chunk: ir.Expr, column: ir.Expr) -> tirx.Stmt:
            return self._stored(begin + column, chunk)

        if begin == self.padded:
            return None
        return sequence([self._zeros(), self._parts(count, self.padded - begin, part)])

    def _stored(self, column: ir.Expr, chunk: ir.Expr) -> tirx.Stmt:
        return self._store_vector(load(self.shared, [self.rows.element(column, chunk)]))

    def _parts(
        self, count: int, groups: int, body: Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Share out chunks of keys of all groups of columns, those of one group side by side."""
        chunks = count // VECTOR
        total = chunks * groups

        def item(number: ir.Expr) -> tirx.Stmt:
            flat = number * self.threads + self.thread
            group, chunk = coordinates(flat, [index(1), chunks])
            stmt = body(number, chunk, group)
            return stmt if total % self.threads == 0 else when(flat < total, stmt)

        kind = UNROLLED if self.operand.loads else tirx.ForKind.SERIAL
        return loop("item", -(-total // self.threads), item, kind)
