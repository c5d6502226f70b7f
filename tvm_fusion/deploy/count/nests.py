"""Kernels of a PrimFunc on a CPU: its full-tensor loop nests.

A nest is an outermost loop. What is computed in a tile inside it belongs to it. Loops of one trip
and serial loops around parallel ones are host code: the former are looked through, the trips of the
latter multiply, as a loop around launches does on a GPU. A loop over tasks is a nest whatever its
trips are.
"""

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.target import Target

from ...lower.float_math import KeepNaNTests
from .host import TILE_BYTES, HostWalk, Profile, buffer_bytes

_FOREIGN_CALLS = frozenset(
    {
        "tirx.tvm_call_packed",
        "tirx.tvm_call_cpacked",
        "tirx.tvm_call_packed_lowered",
        "tirx.tvm_call_cpacked_lowered",
        "tirx.call_extern",
        "tirx.call_pure_extern",
    }
)

# Blocks to loops, with every buffer shrunk to what its consumers need and moved to where they are.
# The model's arithmetic is hidden from the simplifier, to which ``x - x`` is a divisor of zero.
_LOWER = tvm.transform.Sequential(
    [
        KeepNaNTests(),
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)


def nest_profile(func: tirx.PrimFunc, name: str, target: Target) -> Profile:
    """Count the loop nests of one call.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        The function, its shapes bound to integers where they are known.

    Returns
    -------
    profile : Profile
        One launch per nest, named by the buffer that it writes last. A function of scalar
        statements alone counts as one. Hidden bytes are those of buffers between nests, and of
        buffers inside one that exceed ``TILE_BYTES``, times the trips that fill them.
    """
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    lowered = _LOWER(tirx.transform.BindTarget(target)(mod))[name]
    walk = _Nests(name)
    walk.visit(lowered.body)
    if not walk.profile.launches and (written := _written(lowered.body)):
        walk.profile.launch(written[-1])
    return walk.profile


def packed_name(call: ir.Call) -> str | None:
    """Name of the external function that a statement calls, or None if it calls none."""
    if not isinstance(call.op, ir.Op) or call.op.name not in _FOREIGN_CALLS:
        return None
    name = call.args[0]
    return str(name.value) if isinstance(name, ir.StringImm) else call.op.name


class _Nests(HostWalk):
    def is_nest(self, loop: tirx.For) -> bool:
        return loop.kind != tirx.ForKind.SERIAL or not _holds_parallel(loop.body)

    def nest(self, loop: tirx.For) -> None:
        written = _written(loop.body)
        self.profile.launch(written[-1] if written else loop.loop_var.name)
        self._large_buffers(loop, 1)

    def evaluate_call(self, call: ir.Call) -> None:
        if (library := packed_name(call)) is not None:
            self.profile.launch(library, "library")

    def _large_buffers(self, stmt: tirx.Stmt, trips: int) -> None:
        """Add buffers larger than a tile; ``trips`` is how often the loops around fill them."""

        def enter(loop: tirx.For, _: object) -> None:
            extent = self.env.evaluate(loop.extent)
            # A bound that varies with an outer loop cannot multiply; one trip is a lower bound.
            self._large_buffers(loop.body, trips * (1 if extent is None else extent))

        def visit_allocation(alloc: tirx.AllocBuffer, _: object) -> None:
            size = buffer_bytes(alloc.buffer, self.env)
            if size is None:
                self.profile.caveats.append(
                    f"{self.name}: buffer {alloc.buffer.name} has an extent known only at run time"
                )
            elif size > TILE_BYTES:
                self.profile.hidden_bytes += size * trips

        tvm_ffi.structural_visit(stmt, [(tirx.For, enter), (tirx.AllocBuffer, visit_allocation)])


def _holds_parallel(stmt: tirx.Stmt) -> bool:
    found: list[tirx.For] = []

    def visit_allocation(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            found.append(loop)

    tvm_ffi.structural_walk(stmt, (tirx.For, visit_allocation))
    return bool(found)


def _written(stmt: tirx.Stmt) -> list[str]:
    names: list[str] = []
    tvm_ffi.structural_walk(stmt, (tirx.BufferStore, lambda store: names.append(store.buffer.name)))
    return names
