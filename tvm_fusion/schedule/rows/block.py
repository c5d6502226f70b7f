"""The threads of a block, and where they keep what its rows hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields

import tvm_ffi
from tvm import DataType, ir, tirx

from ..._tvm.buffer import scratch
from ..expressions import contains, index_of
from .emit import Pairs, bind, element, integer, replace, sequence, unflatten, volume
from .geometry import Geometry
from .passes import Pass, equal_axes, private_buffers
from .registers import steps_of
from .stages import Axis, RowStages, Stage
from .storage import Storage
from .vectors import Order, order_of


@dataclass(frozen=True)
class Spot:
    """Who computes: thread ``t`` of row ``r`` of the block, at its ``item``-th element.

    Attributes
    ----------
    r, t, item : Expr
        Numbers from 0 on.
    held : tuple of (TensorLoad, TensorLoad)
        Elements of memory that were read before, and where they are now.
    """

    r: ir.Expr
    t: ir.Expr
    item: ir.Expr
    held: tuple[tuple[ir.TensorLoad, ir.TensorLoad], ...] = ()


class Block:
    """Buffers and positions of the rows of one block.

    A thread's own buffers are declared with its row and its number as first indices; lowering drops
    these.

    Parameters
    ----------
    storage : Storage
        The stages and where their rows are kept.
    passes : sequence of Pass
        Their walks.
    geometry : Geometry
        The threads.
    number : Expr
        Which block.
    parts : int
        Blocks for the same rows, which share the last walk.
    """

    def __init__(
        self,
        storage: Storage,
        passes: Sequence[Pass],
        geometry: Geometry,
        number: ir.Expr,
        parts: int = 1,
    ):
        self.geometry = geometry
        self.program: RowStages = storage.program
        self._shared = storage.shared
        self._parts = parts
        self._part = tirx.floormod(number, integer(parts))
        self._first_row = tirx.floordiv(number, integer(parts)) * geometry.rows
        self._count = volume(self.program.rows)
        self._private = private_buffers(self.program, passes)
        self._passes = passes
        self._copies: list[tuple[ir.Var, ir.Var]] = []
        self._kept: list[tuple[ir.Var, ir.Var]] = []
        self._terms: list[tuple[ir.Var, ir.Var]] = []
        self._others: list[ir.Var] = []
        self._orders: list[tuple[Sequence[Axis], Order]] = []

    @property
    def buffers(self) -> list[ir.Var]:
        """All buffers used so far."""
        return [own for _, own in (*self._kept, *self._copies, *self._terms)] + self._others

    @property
    def row_registers(self) -> int:
        """32-bit registers of a thread that hold rows from one walk to the next."""
        rows = [own for _, own in self._kept if own.scope() == "local" and len(own.shape) == 3]
        bits = [int(own.shape[-1]) * DataType(str(own.dtype)).bits for own in rows]
        return sum(-(-size // 32) for size in bits)

    def order(self, axes: Sequence[Axis]) -> Order:
        """How threads take elements: the same in all walks over axes of such extents."""
        found = next((o for known, o in self._orders if equal_axes(known, axes)), None)
        if found is None:
            found = order_of(self.program, axes)
            if self._exchanges(axes):
                # Lanes one after the other are no single access to shared memory, between which TVM
                # wants barriers: it may give what is written the place of what is read.
                found = replace_fields(found, width=1, origin=None)
            self._orders.append((axes, found))
        return found

    def _exchanges(self, axes: Sequence[Axis]) -> bool:
        """Whether walks over such axes use shared memory."""
        return any(
            contains(self._shared, buffer)
            for stage in self.program.stages
            if equal_axes(stage.domain, axes)
            for buffer in (*stage.targets, *(load.source for load in stage.loads))
        )

    def scratch(self, shape: Sequence[int], dtype: str, name: str, scope: str) -> ir.Var:
        """Declare a buffer of the rows of the block."""
        extents = [integer(extent) for extent in (self.geometry.rows, *shape)]
        self._others.append(scratch(extents, dtype, name, scope=scope))
        return self._others[-1]

    def pairs(self, stage: Stage, at: Pairs, r: ir.Expr) -> Pairs:
        """Values of a stage's axes, given those inside the row."""
        row = self._first_row + r
        if not self._fills_blocks:
            row = tirx.min(row, self._count - 1)  # computed once more, stored once
        return [*bind(stage.rows, unflatten(row, stage.rows)), *at]

    def value(self, stage: Stage, expr: ir.Expr, pairs: Pairs, spot: Spot) -> ir.Expr:
        """Express a stage's value in what the block holds."""

        def redirect(load: ir.TensorLoad) -> ir.Expr:
            if not self.program.is_internal(load.source):
                held = (mine for known, mine in spot.held if tvm_ffi.structural_equal(known, load))
                return next(held, load)
            if contains(self._shared, load.source) and self._is_own(load.source, stage):
                return element(self._copy(load.source), [spot.r, spot.t])
            return element(*self._place(load.source, load.indices, spot))

        return replace(expr, pairs, redirect)

    def store(self, stage: Stage, pairs: Pairs, spot: Spot, values: Sequence[ir.Expr]) -> tirx.Stmt:
        """Keep results, or write those that leave the kernel."""
        stmts: list[tirx.Stmt] = []
        for target, written, value in zip(stage.targets, stage.indices, values, strict=True):
            indices = [replace(index, pairs, lambda load: load) for index in written]
            if self.program.is_internal(target):
                own, place = self._place(target, indices, spot)
                if contains(self._shared, target) and self._is_read_at_once(target):
                    copy, mine = self._copy(target), [spot.r, spot.t]
                    stmts.append(tirx.BufferStore(copy, value, mine))
                    value = element(copy, mine)
                stmts.append(tirx.BufferStore(own, value, place))
                continue
            store = self.once(tirx.BufferStore(target, value, indices), spot.r)
            if not stage.inner and self.geometry.threads > 1:
                store = tirx.IfThenElse(spot.t == integer(0), store, None)
            stmts.append(store)
        return sequence(stmts)

    def once(self, store: tirx.Stmt, r: ir.Expr) -> tirx.Stmt:
        """Let only rows that exist leave the kernel."""
        if self._fills_blocks:
            return store
        return tirx.IfThenElse(self._first_row + r < self._count, store, None)

    def is_mine(self, stages: Sequence[Stage], step: ir.Expr) -> ir.Expr | None:
        """Whether a step of a walk is this block's; ``None`` if all are."""
        if self._parts == 1 or stages[0] is not self._passes[-1].stages[0]:
            return None
        return tirx.EQ(tirx.floormod(step, integer(self._parts)), self._part)

    def row_in_registers(self, buffer: ir.Var) -> ir.Var | None:
        """Name the registers of a row buffer, if that is where it is kept between walks."""
        producer = self.program.stages[self.program.producer(buffer)]
        others = (self._shared, self._private)
        if not producer.inner or any(contains(some, buffer) for some in others):
            return None
        return self._row(buffer, producer)

    def results(self, stage: Stage) -> list[ir.Var]:
        """Name the results of a reduction, one element a row, which all threads of it know."""
        return [self._keep(t, [self.geometry.rows], "local") for t in stage.targets]

    def terms(self, stage: Stage) -> list[ir.Var]:
        """Name the partial results of a reduction, one element a thread."""
        return [self._terms_of(target) for target in stage.targets]

    @property
    def _fills_blocks(self) -> bool:
        rows = self.geometry.rows
        return rows == 1 or (isinstance(self._count, tirx.IntImm) and int(self._count) % rows == 0)

    def _place(
        self, buffer: ir.Var, indices: Sequence[ir.Expr], spot: Spot
    ) -> tuple[ir.Var, list[ir.Expr]]:
        """Where an element of an internal buffer is kept."""
        inner = list(indices)[len(self.program.rows) :]
        producer = self.program.stages[self.program.producer(buffer)]
        rows, threads = self.geometry.rows, self.geometry.threads
        if contains(self._shared, buffer):
            shape = [rows, *list(buffer.shape)[len(self.program.rows) :]]
            return self._keep(buffer, shape, "shared"), [spot.r, *inner]
        if producer.combine is not None and not producer.inner:
            return self._keep(buffer, [rows], "local"), [spot.r]
        if contains(self._private, buffer) or not producer.inner:
            return self._keep(buffer, [rows, threads], "local"), [spot.r, spot.t]
        return self._row(buffer, producer), [spot.r, spot.t, spot.item]

    def _row(self, buffer: ir.Var, producer: Stage) -> ir.Var:
        rows, threads = self.geometry.rows, self.geometry.threads
        order = self.order(producer.inner)
        items = (steps_of(producer.inner, threads, order) or 1) * order.width
        return self._keep(buffer, [rows, threads, items], "local")

    def _is_own(self, buffer: ir.Var, reader: Stage) -> bool:
        """Whether a stage reads what its thread has computed in the same walk."""
        producer = self.program.stages[self.program.producer(buffer)]
        return any(
            any(s is producer for s in one.stages) and any(s is reader for s in one.stages)
            for one in self._passes
        )

    def _is_read_at_once(self, buffer: ir.Var) -> bool:
        return any(
            load.source.same_as(buffer) and self._is_own(buffer, stage)
            for stage in self.program.stages
            for load in stage.loads
        )

    def _copy(self, buffer: ir.Var) -> ir.Var:
        """Name the register of an element of shared memory: reading it there may need a barrier."""
        place = index_of([b for b, _ in self._copies], buffer)
        if place is None:
            place = len(self._copies)
            shape = [integer(self.geometry.rows), integer(self.geometry.threads)]
            own = scratch(shape, str(buffer.dtype), f"{buffer.name}_own", scope="local")
            self._copies.append((buffer, own))
        return self._copies[place][1]

    def _keep(self, buffer: ir.Var, shape: Sequence[ir.Expr | int], scope: str) -> ir.Var:
        place = index_of([b for b, _ in self._kept], buffer)
        if place is None:
            place = len(self._kept)
            extents = [integer(extent) for extent in shape]
            own = scratch(extents, str(buffer.dtype), buffer.name, scope=scope)
            self._kept.append((buffer, own))
        return self._kept[place][1]

    def _terms_of(self, target: ir.Var) -> ir.Var:
        place = index_of([b for b, _ in self._terms], target)
        if place is None:
            place = len(self._terms)
            shape = [integer(self.geometry.rows), integer(self.geometry.threads)]
            own = scratch(shape, str(target.dtype), f"{target.name}_part", scope="local")
            self._terms.append((target, own))
        return self._terms[place][1]
