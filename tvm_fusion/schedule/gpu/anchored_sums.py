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
"""

from __future__ import annotations

import tvm_ffi
from tvm import DataType, ir, tirx
from tvm.ir.transform import PassContext

from ..._tvm.target import target_kind
from ...core.expressions import call_name, loads
from ...core.loops import constant, find, index
from ..instructions.lanes import STAY

MOST_STEPS = 16  # of a loop that LLVM unrolls: of more its thresholds keep it
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
            sums = _sums(loop) if _is_unrolled(loop) else []
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


def _is_unrolled(loop: tirx.For) -> bool:
    """Whether LLVM may unroll a loop that has barriers."""
    steps = constant(loop.extent)
    has_barrier = any(call_name(call) == _SYNC for call in find(loop.body, ir.Call))
    return steps is not None and 1 < steps <= MOST_STEPS and has_barrier


def _sums(loop: tirx.For) -> list[ir.Var]:
    """List the buffers in registers that a loop adds to, from step to step."""
    inside = {stmt.buffer for stmt in find(loop.body, tirx.AllocBuffer)}
    found: dict[ir.Var, None] = {}
    for store in find(loop.body, tirx.BufferStore):
        buffer = store.buffer
        if buffer.scope() != "local" or buffer in inside or not isinstance(store.value, tirx.Add):
            continue
        size, bits = constant(buffer.shape[0]), DataType(str(buffer.dtype)).bits
        adds = any(load.source.same_as(buffer) for load in loads(store.value))
        if adds and bits >= 16 and size is not None and size <= MOST_SUMS:
            found[buffer] = None
    return list(found)
