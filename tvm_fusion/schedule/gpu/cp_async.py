"""Pipelines of asynchronous copies (cp.async) from global to shared memory.

    issue(0) .. issue(stages - 2)               each: copies of 16 bytes, then commit()
    for step:
      wait(pending)                             all but the last `pending` commit groups are there
      consume(stage step % stages)              shared memory -> registers
      issue(step + stages - 1)                  into the stage that was consumed before

A warp that reads only what its own threads copied needs no barrier of the block: ``wait`` and
``warp_sync`` order the warp's threads. Such stages also hold loads in flight that a compiler, which
saves registers, would sink to their uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import index, simplified

BYTES = 16  # of a copy that leaves the first cache alone
NARROW_BYTES = (8, 4)  # of others
COPY = "tvm_fusion_cp_async_16"
_COPY = f"""
__device__ __forceinline__ void {COPY}(void* to, const void* from) {{
  unsigned place = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], {BYTES};"
               :: "r"(place), "l"(from) : "memory");
}}
"""
_COPY_OR_ZERO = f"""
__device__ __forceinline__ void {COPY}_or_zero(void* to, const void* from, bool is_copied) {{
  unsigned place = (unsigned)__cvta_generic_to_shared(to);
  int size = is_copied ? {BYTES} : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], {BYTES}, %2;"
               :: "r"(place), "l"(from), "r"(size) : "memory");
}}
"""
_NARROW = """
__device__ __forceinline__ void {name}(void* to, const void* from, bool is_copied) {{
  unsigned place = (unsigned)__cvta_generic_to_shared(to);
  int size = is_copied ? {size} : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], {size}, %2;"
               :: "r"(place), "l"(from), "r"(size) : "memory");
}}
"""
_COMMIT = """
__device__ __forceinline__ void tvm_fusion_cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
"""
_WAIT = """
__device__ __forceinline__ void {name}() {{
  asm volatile("cp.async.wait_group {pending};" ::: "memory");
  {barrier}();
}}
"""
_WARP_SYNC = """
__device__ __forceinline__ void tvm_fusion_warp_sync() {
  __syncwarp();
}
"""


@dataclass(frozen=True, eq=False)
class StageRing:
    """A ring of stages in shared memory, ``buffer[stages, ...]``: a step uses stage step % stages.

    All stages of a kernel are one buffer. TVM 0.27 lets two buffers share memory if copies into the
    one precede reads of the other, as it does not count address_of as a use. CUDA wants one type
    for all declarations of a name.
    """

    buffer: ir.Var

    @classmethod
    def declare(cls, shape: Sequence[int], dtype: str) -> StageRing:
        """Declare the ring; the first extent is the number of stages."""
        extents = [index(d) for d in shape]
        return cls(scratch(extents, dtype, f"cp_async_{dtype}", "shared.dyn"))

    def element(self, step: ir.Expr, *place: ir.Expr) -> ir.TensorLoad:
        """Read an element of a step's stage."""
        stages = index(int(self.buffer.ty.shape[0]))
        return load(self.buffer, [simplified(tirx.floormod(step, stages)), *place])

    def copy(self, step: ir.Expr, place: Sequence[ir.Expr], source: ir.TensorLoad) -> tirx.Stmt:
        """Issue the copy of the aligned vector that starts at ``source`` into a step's stage."""
        to = self.element(step, *place, index(0))
        places = (tirx.address_of(to), tirx.address_of(source))
        return tirx.Evaluate(cuda_func_call(COPY, *places, source_code=_COPY))


def copy_16(
    to: ir.TensorLoad, source: ir.TensorLoad, is_copied: ir.Expr | None = None
) -> tirx.Stmt:
    """Issue the copy of an aligned vector, or of zeros where a condition does not hold."""
    places = (tirx.address_of(to), tirx.address_of(source))
    if is_copied is None:
        return tirx.Evaluate(cuda_func_call(COPY, *places, source_code=_COPY))
    call = cuda_func_call(f"{COPY}_or_zero", *places, is_copied, source_code=_COPY_OR_ZERO)
    return tirx.Evaluate(call)


def copy_narrow(
    to: ir.TensorLoad, source: ir.TensorLoad, size: int, is_copied: ir.Expr
) -> tirx.Stmt:
    """Issue the copy of 8 or 4 aligned bytes, or of zeros where a condition does not hold."""
    name = f"tvm_fusion_cp_async_{size}_or_zero"
    places = (tirx.address_of(to), tirx.address_of(source))
    source_code = _NARROW.format(name=name, size=size)
    return tirx.Evaluate(cuda_func_call(name, *places, is_copied, source_code=source_code))


def commit() -> tirx.Stmt:
    """Close the commit group of the copies issued since the last one; it may be empty."""
    return tirx.Evaluate(cuda_func_call("tvm_fusion_cp_async_commit", source_code=_COMMIT))


def wait(pending: int) -> tirx.Stmt:
    """Wait until at most so many commit groups of the warp's threads are pending."""
    return wait_with(f"tvm_fusion_cp_async_wait_{pending}", pending, "__syncwarp")


def wait_with(name: str, pending: int, barrier: str) -> tirx.Stmt:
    """Wait for commit groups, then at a barrier of CUDA's, in a device function of a name."""
    source = _WAIT.format(name=name, pending=pending, barrier=barrier)
    return tirx.Evaluate(cuda_func_call(name, source_code=source))


def warp_sync() -> tirx.Stmt:
    """Let all threads of a warp have read the stage that the next copies overwrite."""
    return tirx.Evaluate(cuda_func_call("tvm_fusion_warp_sync", source_code=_WARP_SYNC))
