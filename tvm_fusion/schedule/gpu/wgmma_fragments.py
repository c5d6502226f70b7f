"""Warpgroup products (wgmma.mma_async) whose A is in registers, B in shared memory.

    fence_proxy(); barrier of the block         what cp.async wrote is visible to products
    multiply(acc, a, tile): wgmma.fence; wgmma for every 16 of k; commit; wait

Four warps execute a product together. Fragments of A and accumulators are laid out as those of
mma.m16n8k16: warp w of the group has rows ``16 * w`` to ``16 * w + 15``. B lies in panels of 64
elements (128 bytes), whose vectors are XORed with ``row % 8``; it is aligned to 1024 bytes.

All instructions of a product are one statement: registers that an instruction still reads or writes
must not be touched, which a compiler of several statements does not know.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

WARPS = 4  # of a warpgroup
M = 64
PANEL = 64  # elements of a row of a panel
ROW_BYTES = 128
_SHORT = {"float16": "f16", "bfloat16": "bf16"}
_PROXY = """
__device__ __forceinline__ void tvm_fusion_fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
"""
_PRODUCT = """
__device__ __forceinline__ void {name}(float* acc, const void* a, const void* tile) {{
  const unsigned* x = (const unsigned*)a;
  unsigned place = (unsigned)__cvta_generic_to_shared(tile);
  unsigned long long b = (unsigned long long)((place & 0x3FFFF) >> 4) | ({leading}ull << 16)
                       | (64ull << 32) | (1ull << 62);
  asm volatile("{{\\n\\t.reg .b64 b;\\n\\t.reg .pred p, q;\\n\\t"
      "setp.ne.b32 p, {is_added}, 0;\\n\\tsetp.ne.b32 q, 1, 0;\\n\\t"
      "wgmma.fence.sync.aligned;\\n\\t"
{instructions}
      "wgmma.commit_group.sync.aligned;\\n\\t"
      "wgmma.wait_group.sync.aligned 0;\\n\\t}}"
      : {outputs}
      : {inputs}, "l"(b)
      : "memory");
}}
"""
_INSTRUCTION = """\
      "add.s64 b, %{b}, {step};\\n\\t"
      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{short}.{short} "
      "{{{acc}}}, {{{a}}}, b, {p}, 1, 1, {trans};\\n\\t\""""


def multiply(
    dtype: str,
    n: int,
    k: int,
    acc: ir.TensorLoad,
    a: ir.TensorLoad,
    tile: ir.TensorLoad,
    is_added: bool,
    panel_bytes: int,
    is_k_contiguous: bool,
) -> tirx.Stmt:
    """Compute ``acc = a * b``, or ``acc += a * b``.

    Parameters
    ----------
    dtype : str
        Type of A and B.
    n, k : int
        Columns of B, a multiple of 8 up to 256, and its rows, a multiple of 16.
    acc : TensorLoad
        The first of a thread's n / 2 accumulators.
    a : TensorLoad
        The first of a thread's fragments of A: for 16 of k four values of row groupID, then four of
        row groupID + 8.
    tile : TensorLoad
        The first element of B in shared memory.
    is_added : bool
        Whether the accumulators hold terms already.
    panel_bytes : int
        From one panel of 64 elements to the next.
    is_k_contiguous : bool
        Whether panels run along k, their rows along n; otherwise they run along n.
    """
    short, count, steps = _SHORT[dtype], n // 2, k // 16
    layout = "nk" if is_k_contiguous else "kn"
    name = f"tvm_fusion_wgmma_m64n{n}k{k}_{short}_{layout}_{panel_bytes}_{int(is_added)}"
    registers = ", ".join(f"%{i}" for i in range(count))
    instructions = []
    for k16 in range(steps):
        first = count + 4 * k16
        if is_k_contiguous:
            panel, column = divmod(k16 * 16, PANEL)
            step = panel * panel_bytes + column * 2
        else:
            step = k16 * 16 * ROW_BYTES
        instructions.append(
            _INSTRUCTION.format(
                b=count + 4 * steps,
                step=step >> 4,
                n=n,
                short=short,
                acc=registers,
                a=", ".join(f"%{first + i}" for i in range(4)),
                p="p" if k16 == 0 else "q",
                trans=int(not is_k_contiguous),
            )
        )
    words = [4 * k16 + i for k16 in range(steps) for i in (0, 2, 1, 3)]
    source = _PRODUCT.format(
        name=name,
        leading=1 if is_k_contiguous else panel_bytes >> 4,
        is_added=int(is_added),
        instructions="\n".join(instructions),
        outputs=", ".join(f'"+f"(acc[{i}])' for i in range(count)),
        inputs=", ".join(f'"r"(x[{i}])' for i in words),
    )
    addresses = [tirx.address_of(x) for x in (acc, a, tile)]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))


def fence_proxy() -> tirx.Stmt:
    """Make what a thread wrote to shared memory visible to products, behind the next barrier."""
    return tirx.Evaluate(cuda_func_call("tvm_fusion_fence_proxy_async", source_code=_PROXY))
