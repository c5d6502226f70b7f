"""Accumulators of AMD kernels, kept from being computed where they are stored.

A GEMM whose K loop has few steps is unrolled by LLVM. Its results are stored under conditions, each
in a branch of its own, and LLVM's Sink pass moves a computation into the only branch that wants it:
the multiply-adds of all steps behind the last barrier, while every element that was read from
shared memory waits in a register. A GEMM of 37x70x45 in float32 took 512 registers on gfx942 and
spilled 48; so it takes 118.

    for step in range(3):                         for step in range(3):
        copy; barrier                                 copy; barrier
        acc[0..16] += a * b               ->          acc[0..16] += a * b
        barrier                                       acc[i] = stay(acc[i]) for all i
    if inside: store(acc[0])                          barrier
    if inside: store(acc[1]) ..                   ..

``stay`` is a move between lanes that moves nothing: LLVM moves no such instruction into branches,
where other lanes would be. It takes one instruction, next to the 16 products of a step and more.

Counts of comparisons are kept in loops without barriers, too: LLVM unrolls a sort's, compares first
and adds later, with a mask of the wave in scalar registers for each; gfx942 spilled 50 of them.
"""

import tvm_ffi
from tvm import DataType, ir, tirx
from tvm.ir.transform import PassContext

from ...._tvm.ir.target import target_kind
from ....core.tir.expressions import call_name, loads
from ....core.tir.loops import constant, find, index
from ...instructions.lanes import STAY

# Of loops that LLVM unrolls: of more its thresholds keep it.
MOST_STEPS, MOST_COUNTS = 16, 64
MOST_SUMS = 64  # of a thread
_SYNC = "tvm_storage_sync"


@tirx.transform.prim_func_pass(opt_level=0, name="AnchorSums")
class AnchorSums:
    """Keep sums in the loops that compute them, between barriers, on AMD GPUs.

    Runs on device functions whose buffers are flat.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one function for an AMD GPU; others are unchanged."""
        if target_kind(func) != "rocm":
            return func

        def anchored(loop: tirx.For) -> tirx.Stmt:
            sums = _sums(loop)
            if not sums:
                return loop
            stays = [
                tirx.BufferStore(b, STAY.read(tirx.BufferLoad(b, [index(i)])), [index(i)])
                for b in sums
                for i in range(int(b.shape[0]))
            ]
            body = tirx.SeqStmt([loop.body, *stays])
            return tirx.For(
                loop.loop_var, loop.min, loop.extent, loop.kind, body,
                loop.thread_binding, loop.annotations,
            )  # fmt: skip

        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, anchored), order="post"))


def _sums(loop: tirx.For) -> list[ir.Var]:
    """List the buffers in registers that a loop adds to, and that LLVM may add to later."""
    steps = constant(loop.extent)
    if steps is None or not 1 < steps <= MOST_COUNTS:
        return []
    has_barrier = any(call_name(call) == _SYNC for call in find(loop.body, ir.Call))
    inside = {stmt.buffer for stmt in find(loop.body, tirx.AllocBuffer)}
    found: dict[ir.Var, None] = {}
    for store in find(loop.body, tirx.BufferStore):
        buffer = store.buffer
        if buffer.scope() != "local" or buffer in inside or not isinstance(store.value, tirx.Add):
            continue
        size, bits = constant(buffer.shape[0]), DataType(str(buffer.dtype)).bits
        adds = any(load.source.same_as(buffer) for load in loads(store.value))
        if not adds or bits < 16 or size is None or size > MOST_SUMS:
            continue
        if _is_count(store.value) or (has_barrier and steps <= MOST_STEPS):
            found[buffer] = None
    return list(found)


def _is_count(sum_: tirx.Add) -> bool:
    """Whether a comparison is added."""
    term = sum_.b
    return isinstance(term, tirx.Cast) and str(term.value.ty.dtype) == "bool"
