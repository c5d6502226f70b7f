"""The rows of one thread block: their buffers, and the positions of its threads."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields

import tvm_ffi
from tvm import DataType, ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.loops import index, sequence
from ....program.stage import Axis
from ..program.emit import Pairs, bind, replace, unflatten, volume
from ..program.passes import Pass, equal_axes, private_buffers
from ..program.row_program import RowProgram, RowStage
from .config import RowConfig
from .storage import Storage, items_per_thread
from .vectorize import Vectorization, vectorize


@dataclass(frozen=True)
class Position:
    """Thread ``t`` of row ``r`` of the block, at its ``item``-th element."""

    # Numbers from 0 on.
    r: ir.Expr
    t: ir.Expr
    item: ir.Expr
    # Elements of memory that were loaded before, and their registers.
    loaded: tuple[tuple[ir.TensorLoad, ir.TensorLoad], ...] = ()


class ThreadBlock:
    """Buffers and positions of the rows of one block.

    Registers are declared with the row and the thread as first indices; lowering drops these.

    Parameters
    ----------
    storage
        The stages, their row buffers placed.
    parts
        Blocks for the same rows, which share the last pass.
    early_bytes
        Of the registers of a thread for what rows share, loaded before the first pass.
    """

    def __init__(
        self,
        storage: Storage,
        passes: Sequence[Pass],
        config: RowConfig,
        number: ir.Expr,
        parts: int = 1,
        early_bytes: int = 0,
    ):
        self.config = config
        self.program: RowProgram = storage.program
        self._shared = storage.shared
        self._parts = parts
        self._early_bytes = early_bytes
        self._early: list[tuple[ir.TensorLoad, ir.Var]] = []
        self._part = tirx.floormod(number, index(parts))
        self._first_group = tirx.floordiv(number, index(parts))
        self.turn: ir.Expr = index(0)
        self.stride = 0
        self.turns: ir.Expr = index(1)
        self._count = volume(self.program.rows)
        self._private = private_buffers(self.program, passes)
        self._passes = passes
        self._copies: dict[ir.Var, ir.Var] = {}
        self._kept: dict[ir.Var, ir.Var] = {}
        self._terms: dict[ir.Var, ir.Var] = {}
        self._others: list[ir.Var] = []
        self._orders: list[tuple[Sequence[Axis], Vectorization]] = []

    @property
    def buffers(self) -> list[ir.Var]:
        """All buffers used so far."""
        owned = (self._kept, self._copies, self._terms)
        return [own for known in owned for own in known.values()] + self._others

    @property
    def row_registers(self) -> int:
        """32-bit registers of a thread that hold rows from one pass to the next."""
        rows = [x for x in self._kept.values() if x.scope() == "local" and len(x.shape) == 3]
        bits = [int(x.shape[-1]) * DataType(str(x.dtype)).bits for x in rows]
        return sum(-(-size // 32) for size in bits)

    @property
    def early_words(self) -> int:
        """32-bit registers of a thread that hold what rows share."""
        return sum(-(-_bytes(own, int(own.shape[-1])) // 4) for _, own in self._early)

    def early_registers(self, load: ir.TensorLoad, size: int, dtype: str) -> ir.Var | None:
        """Allocate registers for ``size`` elements of a thread that all rows share.

        Returns
        -------
        Var or None
            The same for the same load; ``None`` where there is no room.
        """
        known = next((own for other, own in self._early if other.same_as(load)), None)
        if known is not None:
            return known
        needed = size * DataType(dtype).itemsize
        if needed > self._early_bytes:
            return None
        self._early_bytes -= needed
        shape = [self.config.threads, size]
        own = self.scratch(shape, dtype, f"{load.source.name}_early", "local")
        self._early.append((load, own))
        return own

    def vectorized(self, axes: Sequence[Axis]) -> Vectorization:
        """Vectorize a loop: alike in all passes over axes of the same extents."""
        found = next((o for known, o in self._orders if equal_axes(known, axes)), None)
        if found is None:
            found = vectorize(self.program, axes)
            if self._exchanges(axes):
                # Lanes are no single access to shared memory, between which TVM wants barriers: it
                # may reuse the memory of what is read for what is written.
                found = replace_fields(found, width=1, origin=None)
            self._orders.append((axes, found))
        return found

    def _exchanges(self, axes: Sequence[Axis]) -> bool:
        """Whether passes over such axes use shared memory."""
        return any(
            buffer in self._shared
            for stage in self.program.stages
            if equal_axes(stage.loop_axes, axes)
            for buffer in (*stage.targets, *(load.source for load in stage.loads))
        )

    def scratch(self, shape: Sequence[int], dtype: str, name: str, scope: str) -> ir.Var:
        """Declare a buffer of the rows of the block."""
        extents = [index(extent) for extent in (self.config.rows, *shape)]
        self._others.append(scratch(extents, dtype, name, scope=scope))
        return self._others[-1]

    def pairs(self, stage: RowStage, at: Pairs, r: ir.Expr) -> Pairs:
        """Return the values of a stage's axes, from those inside the row."""
        row = self._row_number(r)
        if not self._fills_blocks:
            row = self._existing(row, r)  # computed again, stored once
        return [*bind(stage.rows, unflatten(row, stage.rows)), *at]

    def _row_number(self, r: ir.Expr) -> ir.Expr:
        return (self._first_group + self.turn * self.stride) * self.config.rows + r

    def first_row(self, stage: RowStage, r: ir.Expr) -> Pairs:
        """Return the values of a stage's row axes in the first group of a block of several."""
        return bind(stage.rows, unflatten(self._first_group * self.config.rows + r, stage.rows))

    def _existing(self, row: ir.Expr, r: ir.Expr) -> ir.Expr:
        """Clamp to a row that exists: in a block of several groups, one with the same offset."""
        if not self.config.keeps_shared:
            return tirx.min(row, self._count - 1)
        return tirx.Select(row < self._count, row, self._first_group * self.config.rows + r)

    def value(self, stage: RowStage, expr: ir.Expr, pairs: Pairs, position: Position) -> ir.Expr:
        """Express a stage's value over the buffers of the block."""

        def redirect(load: ir.TensorLoad) -> ir.Expr:
            if not self.program.is_internal(load.source):
                loaded = (
                    mine for known, mine in position.loaded if tvm_ffi.structural_equal(known, load)
                )
                return next(loaded, load)
            if load.source in self._shared and self._is_same_pass(load.source, stage):
                return tirx.BufferLoad(self._copy(load.source), [position.r, position.t])
            return tirx.BufferLoad(*self._place(load.source, load.indices, position))

        return replace(expr, pairs, redirect)

    def store(
        self, stage: RowStage, pairs: Pairs, position: Position, values: Sequence[ir.Expr]
    ) -> tirx.Stmt:
        """Store results in the block's buffers, or to memory."""
        stmts: list[tirx.Stmt] = []
        for target, written, value in zip(stage.targets, stage.indices, values, strict=True):
            indices = [replace(index, pairs) for index in written]
            if self.program.is_internal(target):
                own, place = self._place(target, indices, position)
                if target in self._shared and self._is_read_at_once(target):
                    copy, mine = self._copy(target), [position.r, position.t]
                    stmts.append(tirx.BufferStore(copy, value, mine))
                    value = tirx.BufferLoad(copy, mine)
                stmts.append(tirx.BufferStore(own, value, place))
                continue
            store = self.once(tirx.BufferStore(target, value, indices), position.r)
            if not stage.inner and self.config.threads > 1:
                store = tirx.IfThenElse(position.t == index(0), store, None)
            stmts.append(store)
        return sequence(stmts)

    def once(self, store: tirx.Stmt, r: ir.Expr) -> tirx.Stmt:
        """Guard a store to memory against rows behind the last."""
        if self._fills_blocks:
            return store
        return tirx.IfThenElse(self._row_number(r) < self._count, store, None)

    def is_own_step(self, stages: Sequence[RowStage], step: ir.Expr) -> ir.Expr | None:
        """Whether a step of a pass is this block's; ``None`` if all are."""
        if self._parts == 1 or stages[0] is not self._passes[-1].stages[0]:
            return None
        return tirx.EQ(tirx.floormod(step, index(self._parts)), self._part)

    def row_in_registers(self, buffer: ir.Var) -> ir.Var | None:
        """Return the registers of a row buffer, if it is placed there."""
        producer = self.program.producer(buffer)
        others = (self._shared, self._private)
        if not producer.inner or any(buffer in some for some in others):
            return None
        return self._row(buffer, producer)

    def results(self, stage: RowStage) -> list[ir.Var]:
        """Return the results of a reduction: one element for each row, in all of its threads."""
        return [self._keep(t, [self.config.rows], "local") for t in stage.targets]

    def terms(self, stage: RowStage) -> list[ir.Var]:
        """Return the partial results of a reduction: one element for each thread."""
        return [self._terms_of(target) for target in stage.targets]

    @property
    def _fills_blocks(self) -> bool:
        rows = self.config.rows
        return rows == 1 or (isinstance(self._count, tirx.IntImm) and int(self._count) % rows == 0)

    def _place(
        self, buffer: ir.Var, indices: Sequence[ir.Expr], position: Position
    ) -> tuple[ir.Var, list[ir.Expr]]:
        """Return the place of an element of an internal buffer."""
        inner = list(indices)[len(self.program.rows) :]
        producer = self.program.producer(buffer)
        rows, threads = self.config.rows, self.config.threads
        if buffer in self._shared:
            shape = [rows, *list(buffer.shape)[len(self.program.rows) :]]
            return self._keep(buffer, shape, "shared"), [position.r, *inner]
        if producer.combine is not None and not producer.inner:
            return self._keep(buffer, [rows], "local"), [position.r]
        if buffer in self._private or not producer.inner:
            return self._keep(buffer, [rows, threads], "local"), [position.r, position.t]
        return self._row(buffer, producer), [position.r, position.t, position.item]

    def _row(self, buffer: ir.Var, producer: RowStage) -> ir.Var:
        rows, threads = self.config.rows, self.config.threads
        vectors = self.vectorized(producer.inner)
        items = (items_per_thread(producer.inner, threads, vectors) or 1) * vectors.width
        return self._keep(buffer, [rows, threads, items], "local")

    def _is_same_pass(self, buffer: ir.Var, reader: RowStage) -> bool:
        """Whether a stage reads what its thread has computed in the same pass."""
        producer = self.program.producer(buffer)
        return any(
            any(s is producer for s in one.stages) and any(s is reader for s in one.stages)
            for one in self._passes
        )

    def _is_read_at_once(self, buffer: ir.Var) -> bool:
        return any(
            load.source.same_as(buffer) and self._is_same_pass(buffer, stage)
            for stage in self.program.stages
            for load in stage.loads
        )

    def _copy(self, buffer: ir.Var) -> ir.Var:
        """Return a register copy of an element of shared memory: no barrier is needed."""
        shape = [self.config.rows, self.config.threads]
        return _declared(self._copies, buffer, shape, f"{buffer.name}_own", "local")

    def _keep(self, buffer: ir.Var, shape: Sequence[ir.Expr | int], scope: str) -> ir.Var:
        return _declared(self._kept, buffer, shape, buffer.name, scope)

    def _terms_of(self, target: ir.Var) -> ir.Var:
        shape = [self.config.rows, self.config.threads]
        return _declared(self._terms, target, shape, f"{target.name}_part", "local")


def _bytes(buffer: ir.Var, size: int) -> int:
    return size * DataType(str(buffer.dtype)).itemsize


def _declared(
    known: dict[ir.Var, ir.Var],
    buffer: ir.Var,
    shape: Sequence[ir.Expr | int],
    name: str,
    scope: str,
) -> ir.Var:
    """Return the block's buffer of a buffer of the program, declared at the first use."""
    if buffer not in known:
        extents = [index(extent) for extent in shape]
        known[buffer] = scratch(extents, str(buffer.dtype), name, scope=scope)
    return known[buffer]
