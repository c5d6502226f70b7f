"""Barriers of asynchronous copies and of warp-specialized roles (mbarrier), in shared memory.

A phase ends when ``count`` arrivals and all expected bytes are there; ``wait(bar, parity)`` returns
once the phase of that parity has ended, and at once for parity 1 of a barrier that is new.
"""

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

BYTES = 8  # of a barrier

_PLACE = "unsigned place = (unsigned)__cvta_generic_to_shared(bar);"
_SOURCES = {
    "init": f"""
__device__ __forceinline__ void {{name}}(void* bar, int count) {{{{
  {_PLACE}
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(place), "r"(count) : "memory");
}}}}
""",
    "fence_init": """
__device__ __forceinline__ void {name}() {{
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}}
""",
    "expect_bytes": f"""
__device__ __forceinline__ void {{name}}(void* bar, int bytes) {{{{
  {_PLACE}
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(place), "r"(bytes) : "memory");
}}}}
""",
    "arrive": f"""
__device__ __forceinline__ void {{name}}(void* bar) {{{{
  {_PLACE}
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(place) : "memory");
}}}}
""",
    "wait": f"""
__device__ __forceinline__ void {{name}}(void* bar, int parity) {{{{
  {_PLACE}
  asm volatile("{{{{ .reg .pred done; again: "
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }}}}"
               :: "r"(place), "r"(parity) : "memory");
}}}}
""",
}


def init(bar: ir.TensorLoad, count: int) -> tirx.Stmt:
    """Initialize a barrier that ``count`` arrivals complete; one thread does."""
    return _call("init", bar, tirx.const(count, "int32"))


def fence_init() -> tirx.Stmt:
    """Make initialized barriers known to copies, before a barrier of the block."""
    return _call("fence_init")


def expect_bytes(bar: ir.TensorLoad, count: int) -> tirx.Stmt:
    """Arrive, and let the phase wait for so many bytes of copies."""
    return _call("expect_bytes", bar, tirx.const(count, "int32"))


def arrive(bar: ir.TensorLoad) -> tirx.Stmt:
    """Arrive: what the thread did before is done."""
    return _call("arrive", bar)


def wait(bar: ir.TensorLoad, parity: ir.Expr) -> tirx.Stmt:
    """Wait for the end of the phase of a parity."""
    return _call("wait", bar, tirx.Cast("int32", parity))


def _call(what: str, bar: ir.TensorLoad | None = None, *numbers: ir.Expr) -> tirx.Stmt:
    name = f"tvm_fusion_mbarrier_{what}"
    address = () if bar is None else (tirx.address_of(bar),)
    source = _SOURCES[what].format(name=name)
    return tirx.Evaluate(cuda_func_call(name, *address, *numbers, source_code=source))
