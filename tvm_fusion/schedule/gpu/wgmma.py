"""Warpgroup matrix products (wgmma.mma_async): 64 rows of A times n columns of B.

    A and B in shared memory:     fence();  multiply(acc, a, b, ...) for some k16;  commit()
                                  wait(pending)
    A in registers, B in shared:  :mod:`.wgmma_chain`

Four warps execute them together. Warp w of a group has rows ``16 * w`` on; fragments of A and
accumulators are laid out as those of mma.m16n8k16, of n / 8 tiles of 8 columns. Operands in shared
memory lie as TMA writes them with 128-byte swizzling: rows of 64 elements of a half type along K,
or along M or N. What threads wrote there is visible to products behind ``fence_proxy()`` and a
barrier.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from .mma import PTX_TYPES, WARP
from .tma import PANEL, ROW_BYTES

M = 64  # rows of an instruction
K = 16  # terms of an instruction
WARPS = 4  # of a warpgroup
THREADS = WARPS * WARP

_DESCRIPTOR = """
__device__ __forceinline__ unsigned long long {name}(const void* tile) {{
  unsigned place = (unsigned)__cvta_generic_to_shared(tile);
  return (unsigned long long)((place & 0x3FFFF) >> 4) | ({leading}ull << 16) | ({stride}ull << 32)
         | (1ull << 62);
}}
"""
EIGHT_ROWS = 8 * ROW_BYTES >> 4  # from eight rows to the next, in 16 bytes
_PLAIN = {
    "wgmma_fence": "wgmma.fence.sync.aligned;",
    "wgmma_commit": "wgmma.commit_group.sync.aligned;",
    "wgmma_wait": "wgmma.wait_group.sync.aligned {number};",
    "wgmma_take": "setmaxnreg.inc.sync.aligned.u32 {number};",
    "wgmma_give": "setmaxnreg.dec.sync.aligned.u32 {number};",
    "fence_proxy_async": "fence.proxy.async.shared::cta;",
}


@dataclass(frozen=True)
class Operand:
    """How an operand's tile lies in shared memory.

    Attributes
    ----------
    is_k_contiguous : bool
        Whether rows of 128 bytes are of K; otherwise of M or N, in panels of 64.
    panel_bytes : int
        From one panel of 64 elements to the next.
    """

    is_k_contiguous: bool
    panel_bytes: int

    @property
    def leading(self) -> int:
        """From one panel to the next where rows are of M or N, in 16 bytes; not used for K."""
        return 1 if self.is_k_contiguous else self.panel_bytes >> 4

    def descriptor(self, tile: ir.TensorLoad) -> ir.Expr:
        """Describe the tile that starts at a place of shared memory."""
        name = f"tvm_fusion_wgmma_descriptor_{self.leading}"
        source = _DESCRIPTOR.format(name=name, leading=self.leading, stride=EIGHT_ROWS)
        address = tirx.address_of(tile)
        return cuda_func_call(name, address, source_code=source, return_type="uint64")

    def step(self, k16: int) -> int:
        """Give what is added to a descriptor for the k16-th 16 of K, over all panels."""
        if self.is_k_contiguous:
            panel, column = divmod(k16 * K, PANEL)
            return panel * self.panel_bytes + column * 2 >> 4
        return k16 * K * ROW_BYTES >> 4


def multiply(
    dtype: str,
    n: int,
    acc: ir.TensorLoad,
    a: tuple[Operand, ir.Expr],
    b: tuple[Operand, ir.Expr],
    is_added: ir.Expr,
) -> tirx.Stmt:
    """Issue ``acc = a * b``, or ``acc += a * b`` where ``is_added``, of operands in shared memory.

    Parameters
    ----------
    dtype : str
        Type of A and B.
    n : int
        Columns, a multiple of 8 up to 256.
    acc : TensorLoad
        The first of a thread's n / 2 accumulators.
    a, b : (Operand, Expr)
        How the operands lie, and their descriptors.
    is_added : Expr
        Boolean.
    """
    count, kind = n // 2, PTX_TYPES[dtype]
    turned = [int(not operand.is_k_contiguous) for operand, _ in (a, b)]
    name = f"tvm_fusion_wgmma_m64n{n}k16_{kind}_{turned[0]}{turned[1]}"
    source = f"""
__device__ __forceinline__ void {name}(float* acc, unsigned long long a, unsigned long long b,
                                       bool is_added) {{
  asm volatile("{{ .reg .pred is_added; setp.ne.b32 is_added, %{count + 2}, 0; "
               "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} "
               "{{{_registers(0, count)}}}, %{count}, %{count + 1}, "
               "is_added, 1, 1, {turned[0]}, {turned[1]}; }}"
               : {_sums(count)}
               : "l"(a), "l"(b), "r"((int)is_added));
}}
"""
    call = cuda_func_call(name, tirx.address_of(acc), a[1], b[1], is_added, source_code=source)
    return tirx.Evaluate(call)


def _registers(first: int, count: int) -> str:
    return ", ".join(f"%{i}" for i in range(first, first + count))


def _sums(count: int) -> str:
    return ", ".join(f'"+f"(acc[{i}])' for i in range(count))


def fence_proxy() -> tirx.Stmt:
    """Make what a thread wrote to shared memory visible to products, behind the next barrier."""
    return _plain("fence_proxy_async")


def fence() -> tirx.Stmt:
    """Order accesses of registers before the products that are issued next."""
    return _plain("wgmma_fence")


def commit() -> tirx.Stmt:
    """Close the group of the products issued since the last one."""
    return _plain("wgmma_commit")


def wait(pending: int) -> tirx.Stmt:
    """Wait until at most so many groups are pending."""
    return _plain("wgmma_wait", pending)


def take_registers(count: int) -> tirx.Stmt:
    """Let a warpgroup's threads have more registers."""
    return _plain("wgmma_take", count)


def give_registers(count: int) -> tirx.Stmt:
    """Let a warpgroup's threads have fewer registers."""
    return _plain("wgmma_give", count)


def _plain(what: str, number: int | None = None) -> tirx.Stmt:
    name = f"tvm_fusion_{what}" + ("" if number is None else f"_{number}")
    text = _PLAIN[what].format(number=number)
    source = f"""
__device__ __forceinline__ void {name}() {{
  asm volatile("{text}" ::: "memory");
}}
"""
    return tirx.Evaluate(cuda_func_call(name, source_code=source))
