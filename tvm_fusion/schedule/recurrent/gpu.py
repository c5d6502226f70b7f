"""Recurrent layers on a GPU: one launch for all steps, a block for each direction and row.

grid: directions * batch blocks; block: a thread for each unit, or for some units in turn
h in shared memory, c of each thread's units in registers; __syncthreads
for step:
    for phase:
        each thread: for k: products[gate] += packed[k, gate, unit] * h[k]      # coalesced
                     gates, new states in registers, outputs
        __syncthreads; each thread: h[unit] = its new state; __syncthreads
last states

Rows do not depend on each other, and a row's states never leave its block: no barrier between
blocks is needed. Steps behind the end of a row change nothing and write zeros; they are computed
all the same, since barriers may not stand under conditions. Every step is a loop over the threads
of its own, so that it means the same if threads run one after the other.
"""

from collections.abc import Callable

from tvm import ir, tirx

from ..._tvm.ir.buffer import declare, scratch
from ...core.tir.loops import (
    block,
    coordinates,
    index,
    loop,
    product,
    sequence,
    simplified,
    threads,
    when,
)
from ..gpu.threads.warp import LANES
from .config import MOST_THREADS
from .problem import RecurrentProblem

MOST_VALUES = 24  # of a unit in one phase


class GpuRecurrence:
    """The kernel of a recurrent layer.

    Attributes
    ----------
    packed : Var
        The recurrent weights: direction, unit of the state before, gate, unit.
    """

    def __init__(self, problem: RecurrentProblem) -> None:
        self.problem, self.buffers, self.layer = problem, problem.buffers, problem.layer
        h = self.buffers.hidden
        self.order = "".join(gates for gates, _ in self.layer.phases)
        dtype = str(self.buffers.buffers["weights"].dtype)
        shape = [index(d) for d in (self.layer.directions, h, len(self.order), h)]
        self.packed = declare(shape, dtype, "packed")
        self.threads = threads_of(problem)
        self.rounds = -(-h // self.threads)
        own = [index(self.threads), index(self.rounds)]
        self.shared = {
            source: scratch([index(h)], self.buffers.dtype, source, scope="shared")
            for _, source in self.layer.phases
        }
        self.registers = {
            name: scratch(own, self.buffers.dtype, name, scope="local")
            for name in ("fresh", *self.layer.kept)
            if name not in self.shared
        }
        self.sums = scratch(
            [own[0], index(len(self.order))], self.buffers.dtype, "sums", scope="local"
        )
        self.values = scratch(
            [own[0], index(MOST_VALUES)], self.buffers.dtype, "values", scope="local"
        )

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs the recurrent weights."""
        return self.problem.packing(self.packed, self.order, "DKGU", self.buffers.hidden)

    def body(self) -> tirx.Stmt:
        """Write the loop over blocks."""
        extents = [index(self.layer.directions), self.buffers.batch]

        def row(number: ir.Expr) -> tirx.Stmt:
            d, b = coordinates(number, extents)
            steps = loop("step", self.buffers.steps, lambda s: self._step(s, d, b))
            begin = self._each_unit(lambda t, n, u: sequence(self._begin(d, b, u, [t, n])))
            end = self._each_unit(lambda t, n, u: sequence(self._end(d, b, u, [t, n])))
            owned = [*self.shared.values(), *self.registers.values(), self.sums, self.values]
            return block("row", sequence([begin, steps, end]), owned)

        return threads("blockIdx.x", simplified(product(extents)), row)

    def _each_unit(self, body: Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(thread, round, unit)`` for all units."""

        def thread(t: ir.Expr) -> tirx.Stmt:
            def one(n: ir.Expr) -> tirx.Stmt:
                unit = simplified(n * self.threads + t)
                inside = body(t, n, unit)
                if self.buffers.hidden % self.threads == 0:
                    return inside
                return when(unit < index(self.buffers.hidden), inside)

            return loop("round", self.rounds, one)

        return threads("threadIdx.x", self.threads, thread)

    def _begin(self, d: ir.Expr, b: ir.Expr, u: ir.Expr, own: list[ir.Expr]) -> list[tirx.Stmt]:
        stmts = [tirx.BufferStore(self.shared["h"], self.buffers.initial("h", d, b, u), [u])]
        if "c" in self.registers:
            start = self.buffers.initial("c", d, b, u)
            stmts.append(tirx.BufferStore(self.registers["c"], start, own))
        return stmts

    def _end(self, d: ir.Expr, b: ir.Expr, u: ir.Expr, own: list[ir.Expr]) -> list[tirx.Stmt]:
        stmts = self.buffers.last("h", tirx.BufferLoad(self.shared["h"], [u]), d, b, u)
        if "c" in self.registers:
            c = tirx.BufferLoad(self.registers["c"], own)
            stmts += self.buffers.last("c", c, d, b, u)
        return stmts

    def _step(self, s: ir.Expr, d: ir.Expr, b: ir.Expr) -> tirx.Stmt:
        stmts = []
        for number in range(len(self.layer.phases)):
            is_last = number == len(self.layer.phases) - 1
            target = self.shared["h" if is_last else self.layer.phases[number + 1][1]]

            def compute(t: ir.Expr, n: ir.Expr, u: ir.Expr, number: int = number) -> tirx.Stmt:
                return _Thread(self, number, (s, d, b, t, n, u)).stmt()

            def publish(t: ir.Expr, n: ir.Expr, u: ir.Expr, target: ir.Var = target) -> tirx.Stmt:
                fresh = tirx.BufferLoad(self.registers["fresh"], [t, n])
                return tirx.BufferStore(target, fresh, [u])

            stmts += [self._each_unit(compute), self._each_unit(publish)]
        return sequence(stmts)


class _Thread:
    """One unit in one phase: :class:`...core.recurrent.cell.CellValues`."""

    def __init__(self, kernel: GpuRecurrence, number: int, at: tuple[ir.Expr, ...]) -> None:
        self.kernel, self.number = kernel, number
        self.s, self.d, self.b, self.t, self.n, self.u = at
        self.buffers = kernel.buffers
        self.time = self.buffers.time(self.s, self.d, self.b)
        self.is_inside: ir.Expr | None = None
        if "lengths" in self.buffers.buffers:
            self.is_inside = self.s < self.buffers.length(self.b)
            self.time = self._inside(self.time, self.s)
        self.stmts: list[tirx.Stmt] = []
        self.count = 0

    def stmt(self) -> tirx.Stmt:
        """Write the products, then what the unit does with them."""
        kernel, layer, sums = self.kernel, self.kernel.layer, self.kernel.sums
        gates, source = layer.phases[self.number]
        before = len(kernel.order) - len(gates) if self.number else 0
        zero = tirx.const(0, self.buffers.dtype)
        places = [[self.t, index(before + number)] for number in range(len(gates))]

        def add(k: ir.Expr) -> tirx.Stmt:
            state = tirx.BufferLoad(kernel.shared[source], [k])
            stmts = []
            for place in places:
                weight = tirx.BufferLoad(kernel.packed, [self.d, k, place[1], self.u])
                if str(weight.ty.dtype) != self.buffers.dtype:
                    weight = tirx.Cast(self.buffers.dtype, weight)
                total = tirx.BufferLoad(sums, place) + weight * state
                stmts.append(tirx.BufferStore(sums, total, place))
            return sequence(stmts)

        layer.phase(self.number, self.d, self)
        clear = [tirx.BufferStore(sums, zero, place) for place in places]
        return sequence([*clear, loop("k", self.buffers.hidden, add), *self.stmts])

    def _inside(self, value: ir.Expr, otherwise: ir.Expr) -> ir.Expr:
        """Choose by whether the step is one of the row's."""
        return value if self.is_inside is None else tirx.Select(self.is_inside, value, otherwise)

    def product(self, gate: str) -> ir.Expr:
        return tirx.BufferLoad(self.kernel.sums, [self.t, index(self.kernel.order.index(gate))])

    def projected(self, gate: str) -> ir.Expr:
        return self.buffers.projected(gate, self.time, self.d, self.b, self.u)

    def old(self, name: str) -> ir.Expr:
        if name == "h":
            return tirx.BufferLoad(self.kernel.shared["h"], [self.u])
        return tirx.BufferLoad(self.kernel.registers[name], [self.t, self.n])

    def peephole(self, gate: str) -> ir.Expr:
        return self.buffers.peephole(gate, self.d, self.u)

    def recurrent_bias(self) -> ir.Expr:
        return self.buffers.bias(self.d, self.u)

    def assign(self, name: str, value: ir.Expr) -> ir.Expr:
        at = [self.t, index(self.count)]
        self.count += 1
        self.stmts.append(tirx.BufferStore(self.kernel.values, value, at))
        return tirx.BufferLoad(self.kernel.values, at)

    def put(self, name: str, value: ir.Expr) -> None:
        own, registers = [self.t, self.n], self.kernel.registers
        if name == "h":
            value = self.assign("h", value)
            fresh = self._inside(value, self.old("h"))
            self.stmts.append(tirx.BufferStore(registers["fresh"], fresh, own))
            shown = self._inside(value, tirx.const(0, self.buffers.dtype))
            self.stmts += self.buffers.output(shown, self.time, self.d, self.b, self.u)
        elif name == "c":
            value = self._inside(value, self.old("c"))
            self.stmts.append(tirx.BufferStore(registers["c"], value, own))
        else:
            place = registers.get(name, registers["fresh"])
            self.stmts.append(tirx.BufferStore(place, value, own))


def threads_of(problem: RecurrentProblem) -> int:
    """Threads of a block: whole warps."""
    warps = -(-problem.buffers.hidden // LANES)
    return min(warps * LANES, MOST_THREADS)


def shared_bytes(problem: RecurrentProblem) -> int:
    """Shared memory of a block: what a row's weights are multiplied by."""
    size = 8 if problem.buffers.dtype == "float64" else 4
    return len(problem.layer.phases) * problem.buffers.hidden * size
