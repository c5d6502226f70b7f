"""Copies from memory to shared memory that run while the warp that asked for them goes on.

Shared memory that one warp alone uses needs no barrier of the block: it serves as registers that a
compiler cannot leave empty until they are used, and whose vectors may change threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ..._tvm_buffer import scratch
from ..loops import index

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
_MEET = """
__device__ __forceinline__ void warp_meets() {
  __syncwarp();
}
"""


def places(shape: Sequence[int], dtype: str) -> ir.Var:
    """Declare all shared memory of a kernel that is copied to, in one piece.

    TVM 0.27 lets two pieces share memory if copies into the one come before reads of the other, for
    to take an address is no use of a buffer to it. CUDA wants one type for all of a name.
    """
    return scratch([index(d) for d in shape], dtype, f"copied_{dtype}", "shared.dyn")


def copy(to: ir.TensorLoad, element: ir.TensorLoad) -> tirx.Stmt:
    """Ask for the vector from an element on; both places are multiples of its length."""
    places = (tirx.address_of(to), tirx.address_of(element))
    return tirx.Evaluate(cuda_func_call(COPY, *places, source_code=_COPY))


def commit() -> tirx.Stmt:
    """Make one group of all copies that were asked for since the last, if any."""
    return tirx.Evaluate(cuda_func_call("copies_committed", source_code=_COMMIT))


def wait(pending: int) -> tirx.Stmt:
    """Wait until all of the warp's groups but the last few are there."""
    name = f"copies_but_{pending}"
    source = _WAIT.format(name=name, pending=pending)
    return tirx.Evaluate(cuda_func_call(name, source_code=source))


def meet() -> tirx.Stmt:
    """Let the threads of a warp have read what the next copies overwrite."""
    return tirx.Evaluate(cuda_func_call("warp_meets", source_code=_MEET))
