"""Pipelines of asynchronous copies (cp.async) from global to shared memory.

    issue(0) .. issue(stages - 2)               each: copies of 16 bytes, then commit()
    for step:
      wait(pending)                             all but the last `pending` commit groups are there
      consume(stage_of(step))                   shared memory -> registers
      issue(step + stages - 1)                  into the stage that was consumed before

A warp that reads only what its own threads copied needs no barrier of the block: ``wait`` and
``warp_sync`` order the warp's threads. Such stages also hold loads in flight that a compiler, which
saves registers, would sink to their uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ..._tvm.buffer import scratch
from ...core.loops import index, simplified

BYTES = 16  # of a copy
COPY = "copy_vector"
_COPY = f"""
__device__ __forceinline__ void {COPY}(void* to, const void* from) {{
  unsigned place = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], {BYTES};"
               :: "r"(place), "l"(from) : "memory");
}}
"""
_COMMIT = """
__device__ __forceinline__ void copies_committed() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
"""
_WAIT = """
__device__ __forceinline__ void {name}() {{
  asm volatile("cp.async.wait_group {pending};" ::: "memory");
  __syncwarp();
}}
"""
_WARP_SYNC = """
__device__ __forceinline__ void warp_meets() {
  __syncwarp();
}
"""


def pipeline_buffer(shape: Sequence[int], dtype: str) -> ir.Var:
    """Declare the shared memory of all stages of a kernel, as one buffer.

    TVM 0.27 lets two buffers share memory if copies into the one come before reads of the other,
    for to take an address is no use of a buffer to it. CUDA wants one type for all of a name.
    """
    return scratch([index(d) for d in shape], dtype, f"copied_{dtype}", "shared.dyn")


def stage_of(step: ir.Expr, stages: int) -> ir.Expr:
    """Give the stage that a step's copies use."""
    return simplified(tirx.floormod(step, index(stages)))


def copy(to: ir.TensorLoad, element: ir.TensorLoad) -> tirx.Stmt:
    """Issue the copy of the vector that starts at an element; both are aligned to its size."""
    places = (tirx.address_of(to), tirx.address_of(element))
    return tirx.Evaluate(cuda_func_call(COPY, *places, source_code=_COPY))


def commit() -> tirx.Stmt:
    """Close the commit group of the copies issued since the last one; it may be empty."""
    return tirx.Evaluate(cuda_func_call("copies_committed", source_code=_COMMIT))


def wait(pending: int) -> tirx.Stmt:
    """Wait until at most so many commit groups of the warp's threads are pending."""
    name = f"copies_but_{pending}"
    source = _WAIT.format(name=name, pending=pending)
    return tirx.Evaluate(cuda_func_call(name, source_code=source))


def warp_sync() -> tirx.Stmt:
    """Let all threads of a warp have read the stage that the next copies overwrite."""
    return tirx.Evaluate(cuda_func_call("warp_meets", source_code=_WARP_SYNC))
