"""Walk the host side of a PrimFunc: which launches it makes, how often, around which buffers.

Loops that drive launches are run, not estimated: their trip counts multiply, and a bound that
depends on an outer loop (a scan's levels, a sort's rounds) is evaluated in every trip.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, sym, tirx

from ...core.tir.loops import TASKS
from .result import Kind

# The smallest per-core L2 cache among the supported processors: what fits stays on the core.
TILE_BYTES = 256 * 1024


@dataclass
class Profile:
    """Launches and hidden bytes of one call of one PrimFunc."""

    launches: dict[tuple[str, Kind], int] = field(default_factory=dict)
    hidden_bytes: int = 0
    caveats: list[str] = field(default_factory=list)

    def launch(self, name: str, kind: Kind = "kernel") -> None:
        """Add one launch."""
        self.launches[name, kind] = self.launches.get((name, kind), 0) + 1

    def add(self, other: Profile) -> None:
        """Add another profile's launches, bytes and caveats."""
        for key, calls in other.launches.items():
            self.launches[key] = self.launches.get(key, 0) + calls
        self.hidden_bytes += other.hidden_bytes
        self.caveats += other.caveats

    @property
    def weight(self) -> tuple[int, int]:
        """Order of branches: more launches first, then more bytes."""
        return sum(self.launches.values()), self.hidden_bytes


class Env:
    """Integers known on the host: of variables, and in the shape heap."""

    def __init__(self) -> None:
        self.values: dict[ir.Var, int] = {}
        self.heaps: dict[ir.Var, list[int | None]] = {}
        self._analyzer = sym.Analyzer()

    def evaluate(self, expr: object) -> int | None:
        """Return the value of an integer expression, or None if it is not known."""
        if isinstance(expr, int):
            return expr
        if not isinstance(expr, tirx.IntImm):
            known = [(ir.Var, self._known), (ir.TensorLoad, self._loaded)]
            expr = tvm_ffi.structural_map(expr, known)
            expr = self._analyzer.simplify(expr)
        return int(expr.value) if isinstance(expr, tirx.IntImm) else None

    def _known(self, var: ir.Var) -> ir.Expr:
        value = self.values.get(var)
        return var if value is None else tirx.IntImm(str(var.ty.dtype), value)

    def _loaded(self, load: ir.TensorLoad) -> ir.Expr:
        heap = self.heaps.get(load.source)
        slot = None if heap is None else self.evaluate(load.indices[0])
        value = None if heap is None or slot is None else heap[slot]
        return load if value is None else tirx.IntImm("int64", value)


def buffer_bytes(buffer: tirx.Buffer, env: Env) -> int | None:
    """Bytes of a buffer, or None if an extent is not known."""
    extents = [env.evaluate(extent) for extent in buffer.shape]
    bits = tensor_bits(buffer.dtype)
    for extent in extents:
        if extent is None:
            return None
        bits *= extent
    return (bits + 7) // 8


def tensor_bits(dtype: object) -> int:
    """Bits of one element; booleans are stored as bytes."""
    data_type = tvm_ffi.dtype(str(dtype))
    return 8 if str(dtype) == "bool" else data_type.bits * data_type.lanes


class HostWalk:
    """Visit host statements; subclasses say what a launch looks like.

    Parameters
    ----------
    name
        The PrimFunc's name, for caveats.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.env = Env()
        self.profile = Profile()

    def is_nest(self, loop: tirx.For) -> bool:
        """Whether a loop is itself a kernel, rather than host code around kernels."""
        raise NotImplementedError

    def nest(self, loop: tirx.For) -> None:
        """Count a loop that is a kernel."""
        raise NotImplementedError

    def evaluate_call(self, call: ir.Call) -> None:
        """Count a call statement."""
        raise NotImplementedError

    def store(self, store: tirx.BufferStore) -> None:
        """Meet a store outside every kernel."""

    def visit(self, stmt: tirx.Stmt) -> None:
        """Count what a host statement launches."""
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.visit(part)
        elif isinstance(stmt, tirx.For):
            self._visit_for(stmt)
        elif isinstance(stmt, tirx.AttrStmt):
            self.visit(stmt.body)
        elif isinstance(stmt, tirx.IfThenElse):
            self._visit_if(stmt)
        elif isinstance(stmt, tirx.While):
            self.profile.caveats.append(
                f"{self.name}: a while loop on the host is counted as one trip"
            )
            self.visit(stmt.body)
        elif isinstance(stmt, tirx.Bind):
            is_pointer = not hasattr(stmt.var.ty, "dtype")  # of a tensor map
            value = None if is_pointer else self.env.evaluate(stmt.value)
            if value is not None:
                self.env.values[stmt.var] = value
        elif isinstance(stmt, tirx.AllocBuffer):
            self.allocate(stmt.buffer)
        elif isinstance(stmt, tirx.BufferStore):
            self.store(stmt)
        elif isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, ir.Call):
            self.evaluate_call(stmt.value)

    def allocate(self, buffer: tirx.Buffer) -> None:
        """Count a buffer that lives between launches: an intermediate, whatever its size."""
        size = buffer_bytes(buffer, self.env)
        if size is None:
            self.profile.caveats.append(
                f"{self.name}: buffer {buffer.name} has an extent known only at run time"
            )
        else:
            self.profile.hidden_bytes += size

    def _visit_for(self, loop: tirx.For) -> None:
        trips = self.env.evaluate(loop.extent)
        if trips == 0:
            return
        # A loop over tasks is one kernel, even for a single task.
        if (trips != 1 or TASKS in loop.annotations) and self.is_nest(loop):
            self.nest(loop)
            return
        start = self.env.evaluate(loop.min)
        if trips is None or start is None:
            self.profile.caveats.append(
                f"{self.name}: loop {loop.loop_var.name} around kernels is counted as one trip"
            )
            self.visit(loop.body)
            return
        for trip in range(start, start + trips):
            self.env.values[loop.loop_var] = trip
            self.visit(loop.body)

    def _visit_if(self, stmt: tirx.IfThenElse) -> None:
        cases = [stmt.then_case] + ([stmt.else_case] if stmt.else_case is not None else [])
        taken = self.env.evaluate(stmt.condition)
        if taken is not None:
            cases = cases[:1] if taken else cases[1:]
        before, profiles = self.profile, []
        for case in cases:
            self.profile = Profile()
            self.visit(case)
            profiles.append(self.profile)
        self.profile = before
        if profiles:
            self.profile.add(max(profiles, key=lambda profile: profile.weight))
