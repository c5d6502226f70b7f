"""Prefix sums along rows, on a GPU.

grid: ceil(count / rows) blocks; block: (rows, warps, lanes) threads, a vector of a row for each
for round (longer rows than the block has vectors), from carry = 0:
    load a vector; sum up to each of its elements
    scan the vectors' totals over the lanes of a warp, by shuffles; of AMD's waves by lane moves
    last lane: total of the warp -> shared memory; __syncthreads
    add the totals of the warps before and the carry; carry += totals of all warps
    store the vector

Maps before and behind the sum are computed of vectors in registers.

Every step is a loop over the threads of its own, so that it means the same if threads run one after
the other.
"""

from collections.abc import Callable, Mapping

import tvm_ffi
from tvm import ir, tirx

from ..._tvm.ir.buffer import scratch
from ...core.tir.expressions import loads, map_loads, substitute
from ...core.tir.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    loop,
    product,
    sequence,
    simplified,
    threads,
    unrolled,
    when,
)
from ..gpu.threads.warp import each_thread, shuffle
from ..index.address import known_step
from ..instructions.lanes import ROW, LaneMove
from .config import RowScanConfig
from .problem import Map, PrefixSumProblem

Body = Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]
Element = Callable[[ir.Expr, list[ir.Expr]], tirx.Stmt]


def scan_gpu(
    scan: PrefixSumProblem, config: RowScanConfig, moves: Mapping[int, LaneMove] | None
) -> tirx.Stmt:
    """Write the loop over blocks.

    Parameters
    ----------
    moves
        Of an AMD wave: see :func:`~tvm_fusion.schedule.instructions.lanes.scan_moves`.
    """
    return _ScanBlock(scan, config, moves).grid()


class _ScanBlock:
    """One thread block: some rows."""

    def __init__(
        self,
        scan: PrefixSumProblem,
        config: RowScanConfig,
        moves: Mapping[int, LaneMove] | None,
    ) -> None:
        self.scan, self.config, self._moves = scan, config, moves
        self.rows, self.warps, self.lanes = config.rows, config.warps, config.lanes
        self.width = config.width
        self.count = product(scan.rows)
        self._shape = (self.rows, self.warps, self.lanes)
        shape = [index(d) for d in self._shape]

        def own(name: str, dtype: str, size: int = 1) -> ir.Var:
            return scratch([*shape, index(size)], dtype, name, scope="local")

        self.raw = own("raw", str(scan.before.value.ty.dtype), self.width)
        self.out = own("out", str(scan.sums.dtype), self.width)
        self.held = own("held", scan.dtype, self.width)
        self.here, self.there = own("here", scan.dtype), own("there", scan.dtype)
        self.before, self.carry = own("before", scan.dtype), own("carry", scan.dtype)
        self.shuffled = own("shuffled", scan.dtype)
        self.operands = {
            one: [
                (read, own("operand", str(read.source.dtype), self.width))
                for read in _distinct(one, scan.sums)
            ]
            for one in (scan.before, *scan.after)
            if not one.is_load
        }
        self.results = [
            self.out if one.is_load else own("result", str(y.dtype), self.width)
            for y, one in zip(scan.outputs, scan.after, strict=True)
        ]
        self.totals = scratch(shape[:2], scan.dtype, "totals", scope="shared")

    def grid(self) -> tirx.Stmt:
        """Write all blocks."""
        return threads("blockIdx.x", ceildiv(self.count, self.rows), self._rows)

    def _rows(self, number: ir.Expr) -> tirx.Stmt:
        self.first = number * self.rows
        zero = tirx.const(0, self.scan.dtype)
        start = self._each_thread(lambda *at: tirx.BufferStore(self.carry, zero, [*at, index(0)]))
        body = sequence([start, loop("round", self.config.rounds, self._round)])
        vectors = [self.raw, self.out, self.held]
        vectors += [vector for own in self.operands.values() for _, vector in own]
        vectors += [y for y in self.results if y is not self.out]
        numbers = [self.here, self.there, self.shuffled, self.before, self.carry]
        if self.warps > 1:
            numbers.append(self.totals)
        return block("rows", body, [*vectors, *numbers])

    def _each_thread(self, body: Body) -> tirx.Stmt:
        """Run ``body(row, warp, lane)`` in every thread."""
        extents = zip(("threadIdx.z", "threadIdx.y", "threadIdx.x"), self._shape, strict=True)
        return each_thread(list(extents), body)

    def _round(self, number: ir.Expr) -> tirx.Stmt:
        """Scan the next vectors of each row."""
        stmts = [self._each_thread(lambda *at: self._read(number, *at))]
        distance = 1
        here, there = self.here, self.there
        while distance < self.lanes:
            stmts.append(self._each_thread(self._level(here, there, distance)))
            here, there = there, here
            distance *= 2
        return sequence(
            [
                *stmts,
                self._each_thread(lambda *at: self._publish(here, *at)),
                *([self._each_thread(self._add)] if self.warps > 1 else []),
                self._each_thread(lambda *at: self._write(number, *at)),
            ]
        )

    def _read(self, number: ir.Expr, r: ir.Expr, w: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        """Load a vector and sum up to each of its elements; masked elements are zero."""
        at, dtype = [r, w, lane], self.scan.dtype

        def clear(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.raw, tirx.const(0, str(self.raw.dtype)), [*at, i])

        def copy(i: ir.Expr, place: list[ir.Expr]) -> tirx.Stmt:
            return tirx.BufferStore(self.raw, self.scan.before.at(place), [*at, i])

        def take(i: ir.Expr) -> tirx.Stmt:
            value = tirx.Cast(dtype, tirx.BufferLoad(self.raw, [*at, i]))
            if constant(i) != 0:
                value = tirx.BufferLoad(self.held, [*at, i - 1]) + value
            return tirx.BufferStore(self.held, value, [*at, i])

        total = tirx.BufferLoad(self.held, [*at, index(self.width - 1)])
        return sequence(
            [
                self._unrolled(clear),
                *self._mapped(number, at, self.scan.before, self.raw, copy),
                *(take(index(i)) for i in range(self.width)),
                tirx.BufferStore(self.here, total, [*at, index(0)]),
            ]
        )

    def _level(self, here: ir.Var, there: ir.Var, distance: int) -> Body:
        """Write one level of the scan over lanes."""

        def body(*at: ir.Expr) -> tirx.Stmt:
            mine = tirx.BufferLoad(here, [*at, index(0)])
            if self._moves is None:
                exchange, before = self._from_before(here, at, distance)
            else:
                exchange, before = self._moved(self._moves[distance], mine, at)
            return sequence([exchange, tirx.BufferStore(there, mine + before, [*at, index(0)])])

        return body

    def _from_before(
        self, buffer: ir.Var, at: tuple[ir.Expr, ...], distance: int
    ) -> tuple[tirx.Stmt, ir.Expr]:
        """Shuffle from an earlier lane, in a statement that all threads execute.

        The first lanes get zero from the expression.
        """
        lane = tirx.Cast("int32", at[-1])
        other = tirx.max(lane - tirx.const(distance, "int32"), tirx.const(0, "int32"))
        mine = tirx.BufferLoad(buffer, [*at, index(0)])
        value = shuffle(mine, other, self.lanes, self.lanes)
        exchange = tirx.BufferStore(self.shuffled, value, [*at, index(0)])
        found = tirx.BufferLoad(self.shuffled, [*at, index(0)])
        return exchange, tirx.Select(at[-1] >= distance, found, tirx.const(0, self.scan.dtype))

    def _moved(
        self, move: LaneMove, mine: ir.Expr, at: tuple[ir.Expr, ...]
    ) -> tuple[tirx.Stmt, ir.Expr]:
        """Read what a lane adds, in a statement that all threads execute.

        Shifts within whole rows give 0 where there is nothing to add.
        """
        exchange = tirx.BufferStore(self.shuffled, move.read(mine), [*at, index(0)])
        found = tirx.BufferLoad(self.shuffled, [*at, index(0)])
        if move.shift and self.lanes >= ROW:
            return exchange, found
        distance, block_size = move.shift or move.block, 2 * move.block or self.lanes
        has_others = tirx.floormod(at[-1], index(block_size)) >= distance
        return exchange, tirx.Select(has_others, found, tirx.const(0, self.scan.dtype))

    def _before(self, found: ir.Var, at: tuple[ir.Expr, ...]) -> tuple[tirx.Stmt, ir.Expr]:
        """Read the sum of all lanes before, in a statement that all threads execute."""
        moves, lane, place = self._moves, at[-1], [*at, index(0)]
        if moves is None or 1 not in moves:
            return self._from_before(found, at, 1)
        total = tirx.BufferLoad(found, place)
        stmts = [tirx.BufferStore(self.shuffled, moves[1].read(total), place)]
        before: ir.Expr = tirx.BufferLoad(self.shuffled, place)
        if ROW in moves:
            stmts.append(tirx.BufferStore(self.before, moves[ROW].read(total), place))
            is_first = tirx.EQ(tirx.floormod(lane, index(ROW)), index(0))
            before = tirx.Select(is_first, tirx.BufferLoad(self.before, place), before)
        return sequence(stmts), tirx.Select(lane >= 1, before, tirx.const(0, self.scan.dtype))

    def _publish(self, found: ir.Var, *at: ir.Expr) -> tirx.Stmt:
        """Store the total of each warp in shared memory; keep the sum before each lane."""
        r, w, lane = at
        total = tirx.BufferLoad(found, [*at, index(0)])
        exchange, before = self._before(found, at)
        kept = sequence([exchange, tirx.BufferStore(self.before, before, [*at, index(0)])])
        if self.warps == 1:  # nor is there another round
            return kept
        published = tirx.BufferStore(self.totals, total, [r, w])
        return sequence([kept, when(tirx.EQ(lane, index(self.lanes - 1)), published)])

    def _add(self, *at: ir.Expr) -> tirx.Stmt:
        """Add the totals of the warps before, and of all rounds before."""
        r, w, _ = at
        zero = index(0)
        stmts = []
        for other in range(self.warps):
            carry = tirx.BufferLoad(self.carry, [*at, zero])
            before = tirx.BufferLoad(self.before, [*at, zero])
            total = tirx.BufferLoad(self.totals, [r, index(other)])
            mine = tirx.Select(tirx.EQ(w, index(other)), carry + before, before)
            stmts.append(tirx.BufferStore(self.before, mine, [*at, zero]))
            stmts.append(tirx.BufferStore(self.carry, carry + total, [*at, zero]))
        return sequence(stmts)

    def _write(self, number: ir.Expr, *at: ir.Expr) -> tirx.Stmt:
        """Store the sums of a vector."""
        r = at[0]
        before = tirx.BufferLoad(self.before, [*at, index(0)])

        def own(i: int) -> ir.Expr:
            return before + tirx.BufferLoad(self.held, [*at, index(i)])

        def result(i: int) -> tirx.Stmt:
            value = own(i)
            if self.scan.is_exclusive:
                value = own(i - 1) if i else before
            value = tirx.Cast(str(self.out.dtype), value)
            return tirx.BufferStore(self.out, value, [*at, index(i)])

        return sequence(
            [
                *(result(i) for i in range(self.width)),
                when(self.first + r < self.count, sequence(self._stored(number, list(at)))),
            ]
        )

    def _stored(self, number: ir.Expr, at: list[ir.Expr]) -> list[tirx.Stmt]:
        """Store what maps make of the sums of a vector."""
        stmts: list[tirx.Stmt] = []
        outputs = zip(self.scan.outputs, self.scan.after, self.results, strict=True)
        for target, one, vector in outputs:

            def copy(
                i: ir.Expr, place: list[ir.Expr], vector: ir.Var = vector, target: ir.Var = target
            ) -> tirx.Stmt:
                return tirx.BufferStore(target, tirx.BufferLoad(vector, [*at, i]), place)

            if not one.is_load:
                stmts += self._mapped(number, at, one, vector, copy)
            stmts.append(self._vector(number, at, copy))
        return stmts

    def _mapped(
        self, number: ir.Expr, at: list[ir.Expr], one: Map, vector: ir.Var, copy: Element
    ) -> list[tirx.Stmt]:
        """Compute what maps make of a vector: operands in vectors first, where there are some."""
        if one.is_load:
            return [self._vector(number, at, copy)]
        operands, stmts = self.operands[one], []

        def element(i: ir.Expr, place: list[ir.Expr]) -> tirx.Stmt:
            def held(read: ir.TensorLoad) -> ir.Expr:
                if read.source.same_as(self.scan.sums):
                    return tirx.BufferLoad(self.out, [*at, i])
                own = next(v for x, v in operands if tvm_ffi.structural_equal(x, read))
                return tirx.BufferLoad(own, [*at, i])

            there = dict(zip(one.indices, place, strict=True))
            return tirx.BufferStore(vector, substitute(map_loads(one.value, held), there), [*at, i])

        for read, own in operands:

            def load(
                i: ir.Expr, place: list[ir.Expr], read: ir.TensorLoad = read, own: ir.Var = own
            ) -> tirx.Stmt:
                there = dict(zip(one.indices, place, strict=True))
                return tirx.BufferStore(own, substitute(read, there), [*at, i])

            is_row = known_step(read.source, read.indices, one.indices[-1], one.indices) == 1
            stmts.append(self._vector(number, at, load, is_row=is_row))
        return [*stmts, self._vector(number, at, element, is_row=False)]

    def _unrolled(self, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        return unrolled("i", self.width, body)

    def _vector(
        self,
        number: ir.Expr,
        at: list[ir.Expr],
        body: Element,
        *,
        is_row: bool = True,
    ) -> tirx.Stmt:
        """Run ``body(i, place)`` for the elements of a vector inside the row.

        As one access of memory, unless the elements are no neighbours, or are computed.
        """
        r, w, lane = at
        row = tirx.min(self.first + r, self.count - 1) if self.rows > 1 else self.first + r
        place = coordinates(row, self.scan.rows)
        start = ((number * self.warps + w) * self.lanes + lane) * self.width
        length = index(self.scan.length)
        if self.config.is_vector and constant(self.scan.length) is not None:
            kind = tirx.ForKind.VECTORIZED if is_row else tirx.ForKind.UNROLLED
            vector = loop("i", self.width, lambda i: body(i, [*place, start + i]), kind)
            return when(simplified(start) < length, vector)
        return self._unrolled(lambda i: when(start + i < length, body(i, [*place, start + i])))


def _distinct(one: Map, sums: ir.Var) -> list[ir.TensorLoad]:
    """List what a map loads, besides the sums, each load once."""
    found: list[ir.TensorLoad] = []
    for read in loads(one.value):
        if not read.source.same_as(sums) and not any(
            tvm_ffi.structural_equal(read, x) for x in found
        ):
            found.append(read)
    return found
