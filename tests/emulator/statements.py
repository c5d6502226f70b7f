"""Statements of lowered TIR as functions of a machine."""

import numpy as np
from tvm import ir, tirx

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.loops import find
from tvm_fusion.schedule.gpu.memory import lds

from .expressions import Expressions, lanes_of
from .hopper import WAITS
from .memory import EmulationError, Memory, Registers, poison
from .roles import run_roles
from .scalar_types import scalar_type
from .wgmma import THREADS, Accumulators

IGNORED = {
    "pragma_vectorize",
    "reduce_scope",
    "storage_alignment",
    "tirx.launch_bounds_min_blocks_per_sm",
}


def owner(declaration):
    """What a declared buffer is a view of: a pointer, or another buffer."""
    data = declaration.data
    return data.args[0] if isinstance(data, ir.Call) else data


def device_functions(body):
    """Texts of the device functions that are called."""
    calls = [call for call in find(body, ir.Call) if call_name(call) == "func_call"]
    return {call.args[-1].value for call in calls}


def _guarded(mask, body):
    def run(m):
        with m.only(mask):
            body(m)

    return run


class Statements:
    """Translates a kernel; ``extents`` are functions that give the sizes of grid and blocks."""

    def __init__(self):
        self.expressions = Expressions()
        self.extents, self.variables = {}, {}
        self.units = {}  # of shared memory: the size of the smallest numbers that it is used as

    def of(self, stmt):
        method = getattr(self, f"_{type(stmt).__name__.lower()}", None)
        if method is None:
            raise EmulationError(f"no such statement is known: {type(stmt).__name__}")
        return method(stmt)

    def bind_threads(self, machine, sizes):
        """Bind thread and block indices to their variables."""
        for kind, number in (("threadIdx", machine.inner), ("blockIdx", machine.grid_block)):
            for axis in "xyz":
                tag = f"{kind}.{axis}"
                size = sizes.get(tag, 1)
                for variable in self.variables.get(tag, ()):
                    own = (number % size).astype(scalar_type(variable.ty.dtype))
                    machine.slots[self.expressions.slot(variable)] = own[:, None]
                number = number // size

    def _seqstmt(self, stmt):
        parts = [self.of(part) for part in stmt.seq]

        def run(m):
            for part in parts:
                part(m)

        return run

    def _attrstmt(self, stmt):
        if stmt.attr_key == "thread_extent":
            tag = stmt.node.thread_tag
            self.extents[tag] = self.expressions.of(stmt.value)
            self.variables.setdefault(tag, []).append(stmt.node.var)
            self.expressions.slot(stmt.node.var)
        elif stmt.attr_key not in IGNORED:
            raise EmulationError(f"no such attribute is known: {stmt.attr_key}")
        return self.of(stmt.body)

    def _declbuffer(self, stmt):
        buffer = stmt.buffer
        source, slot = self.expressions.slot(owner(stmt)), self.expressions.slot(buffer)
        dtype = scalar_type(buffer.dtype)
        self.units[slot] = source, dtype.itemsize

        def run(m):
            m.slots[slot] = m.slots[source].viewed(dtype)

        return run

    def _allocbuffer(self, stmt):
        buffer = stmt.buffer
        (size,) = (int(e) * lanes_of(buffer.dtype) for e in buffer.shape)
        scope, dtype = buffer.scope(), scalar_type(buffer.dtype)
        slot = self.expressions.slot(buffer)

        def run(m):
            if scope == "local":
                kind = Accumulators if slot in self.expressions.sums else Registers
                memory = kind(buffer.name, size, dtype, m)
            elif scope in ("shared", "shared.dyn", lds.SCOPE):
                unit = min([dtype.itemsize, *(x for s, x in self.units.values() if s == slot)])
                memory = Memory(buffer.name, poison(size, dtype), m, per_block=True, unit=unit)
                m.place(memory, max(1, int(buffer.ty.data_alignment)))
            else:
                raise EmulationError(f"no such memory is known: {scope}")
            m.slots[slot] = memory

        return run

    def _bufferstore(self, stmt):
        slot = self.expressions.slot(stmt.buffer)
        index = self.expressions.index(stmt.buffer, stmt.indices)
        value = self.expressions.values(stmt.value)
        return lambda m: m.slots[slot].write(index(m), value(m))

    def _bind(self, stmt):
        slot, value = self.expressions.slot(stmt.var), self.expressions.values(stmt.value)

        def run(m):
            m.slots[slot] = np.copy(value(m))[()]

        return run

    def _evaluate(self, stmt):
        if not isinstance(stmt.value, ir.Call):
            return lambda m: None
        name = call_name(stmt.value)
        if name == "tvm_storage_sync":
            return self._barrier(stmt.value.args[0].value)
        if name in ("griddepcontrol", "address_of"):  # kernels run one after the other
            return lambda m: None
        return self.expressions.of(stmt.value)

    def _barrier(self, scope):
        if scope in ("shared", "shared.dyn"):
            return lambda m: m.block_barrier()
        if scope == "warp":
            return lambda m: m.warp_barrier()
        raise EmulationError(f"no such barrier is known: {scope}")

    def _ifthenelse(self, stmt):
        condition, then = self.expressions.of(stmt.condition), self.of(stmt.then_case)
        otherwise = None if stmt.else_case is None else self.of(stmt.else_case)
        if otherwise is not None and any(WAITS.search(text) for text in device_functions(stmt)):
            return self._roles(condition, then, otherwise)

        def run(m):
            given = condition(m)
            with m.only(given) as some:
                if some:
                    then(m)
            if otherwise is not None:
                with m.only(np.logical_not(given)) as some:
                    if some:
                        otherwise(m)

        return run

    def _roles(self, condition, then, otherwise):
        """Branches that may wait for one another, each warpgroup at its own pace."""

        def run(m):
            given = np.broadcast_to(condition(m), (m.threads, 1))[:, 0].astype(bool)
            group = m.inner // THREADS
            bodies = []
            for where, branch in ((given, then), (~given, otherwise)):
                for number in np.unique(group[m.active()]):
                    mine = where & (group == number)
                    with m.only(mine) as some:
                        if some:
                            bodies.append(_guarded(mine, branch))
            run_roles(m, bodies)

        return run

    def _for(self, stmt):
        if stmt.kind not in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED):
            raise EmulationError(f"no such loop is known: {stmt.kind}")
        slot, dtype = self.expressions.slot(stmt.loop_var), scalar_type(stmt.loop_var.ty.dtype)
        first, extent = self.expressions.of(stmt.min), self.expressions.of(stmt.extent)
        body = self.of(stmt.body)

        def run(m):
            start, count = first(m), extent(m)
            if np.ndim(count) == 0 and np.ndim(start) == 0:
                for number in range(int(start), int(start) + int(count)):
                    m.slots[slot] = dtype.type(number)
                    body(m)
                return
            active = np.broadcast_to(count, (m.threads, 1))[m.active()]
            for number in range(int(active.max(initial=0))):
                with m.only(number < np.asarray(count)) as some:
                    if some:
                        m.slots[slot] = (start + number).astype(dtype)
                        body(m)

        return run

    def _while(self, stmt):
        condition, body = self.expressions.of(stmt.condition), self.of(stmt.body)

        def run(m):
            going = True
            while going:
                with m.only(condition(m)) as going:
                    if going:
                        body(m)

        return run
