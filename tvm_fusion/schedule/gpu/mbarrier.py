"""Barriers of asynchronous copies and of warp-specialized roles (mbarrier), in shared memory.

    init(bar, count); fence_init(), then a barrier of the block
    producer:   wait(empty, parity ^ 1); expect_bytes(full, bytes); TMA copies that complete on full
    consumer:   wait(full, parity); use the stage; arrive(empty)

A phase ends when ``count`` arrivals and all expected bytes are there; ``wait(bar, parity)`` returns
once the phase of that parity has ended, and at once for parity 1 of a barrier that is new.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...core.expressions import load
from ...core.loops import index, local, sequence, when

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


# A thread's position in a ring of stages with mbarriers, kept in registers.
#
#     start():     stage = parity = 0
#     advance(1):  before = stage;  stage += 1;  at the end of the ring:  stage = 0, parity ^= 1
#
# Computed from the number of a step, quotients by the number of stages would take longer than the
# products of a small tile.
_STAGE, _PARITY, _BEFORE = range(3)


class RingPosition:
    """A position in a ring.

    Attributes
    ----------
    stage : Expr
        The stage.
    parity : Expr
        Of the phase in which the stage is used.
    before : Expr
        The stage that was left last, by a step of one.
    buffer : Var
        Registers.
    """

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self.buffer = local("ring", [3], "int32")
        self.stage, self.parity, self.before = (load(self.buffer, [index(i)]) for i in range(3))

    def start(self) -> list[tirx.Stmt]:
        """Begin at the first stage."""
        return [self._set(name, tirx.const(0, "int32")) for name in (_STAGE, _PARITY, _BEFORE)]

    def advance(self, count: int) -> list[tirx.Stmt]:
        """Go on by some stages."""
        rounds, steps = divmod(count, self._stages)
        other = self._set(_PARITY, 1 - self.parity)
        stmts = [self._set(_BEFORE, self.stage)] if count == 1 else []
        stmts += [other] if rounds % 2 else []
        if not steps:
            return stmts
        again = sequence([self._set(_STAGE, self.stage - self._stages), other])
        on = self._set(_STAGE, self.stage + steps)
        return [*stmts, on, when(self.stage >= self._stages, again)]

    def _set(self, name: int, value: ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.buffer, value, [name])
