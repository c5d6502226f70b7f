"""Asynchronous copies (cp.async) from global to shared memory, and commit groups of them.

A warp that reads only what its own threads copied needs no barrier of the block: ``wait`` and
``warp_sync`` order the warp's threads. Such stages also hold loads in flight that a compiler, which
saves registers, would sink to their uses.
"""

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

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
