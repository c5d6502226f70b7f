"""Warpgroup matrix products (wgmma.mma_async): 64 rows of A times n columns of B.

    A and B in shared memory:     fence();  multiply(acc, a, b, ...) for some k16;  commit()
                                  wait(pending)
    A in registers, B in shared:  multiply_fragments(acc, a, tile, ...): all of that for all k16;
                                  or without the wait: then wait_for(acc), and a stays as it is

Four warps execute them together. Warp w of a group has rows ``16 * w`` on; fragments of A and
accumulators are laid out as those of mma.m16n8k16, of n / 8 tiles of 8 columns. Operands in shared
memory lie as TMA writes them with 128-byte swizzling: rows of 64 elements of a half type along K,
or along M or N. What threads wrote there is visible to products behind ``fence_proxy()`` and a
barrier.
"""

from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...instructions.nvidia import K_BYTES, OPERAND_TYPES, PTX_TYPES, SUM_TYPES, ptx
from ...instructions.table import newest
from ..memory.tma import ROW_BYTES
from ..threads.warp import LANES

# Matrix descriptors of wgmma: how an operand's tile lies in shared memory.
#
# Rows of 128 bytes, as TMA writes them with 128-byte swizzling: of K, or of M or N in panels of 64
# elements. A descriptor holds the address, in 16 bytes, and the steps between panels and between
# groups of eight rows (PTX ISA, "matrix descriptor format"); adding to it moves along K.


K = K_BYTES // 2  # terms of an instruction, of half types

_DESCRIPTOR = """
__device__ __forceinline__ unsigned long long {name}(const void* tile) {{
  unsigned place = (unsigned)__cvta_generic_to_shared(tile);
  return (unsigned long long)((place & 0x3FFFF) >> 4) | ({leading}ull << 16) | ({stride}ull << 32)
         | (1ull << 62);
}}
"""
EIGHT_ROWS = 8 * ROW_BYTES >> 4  # from eight rows to the next, in 16 bytes


@dataclass(frozen=True)
class Operand:
    """How an operand's tile lies in shared memory."""

    # Whether rows of 128 bytes are of K; otherwise of M or N, in panels of 64.
    is_k_contiguous: bool
    panel_bytes: int  # from one panel of 64 elements to the next

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
        """Return the offset added to a descriptor for the k16-th 32 bytes of K, over all panels.

        Where rows are of M or N, 32 bytes of K are 16 rows of a half type.
        """
        if self.is_k_contiguous:
            panel, column = divmod(k16 * K_BYTES, ROW_BYTES)
            return panel * self.panel_bytes + column >> 4
        return k16 * K * ROW_BYTES >> 4


_ROW = newest("wgmma", "float16", "float16")
M = _ROW.m  # rows of an instruction, of all types
THREADS = _ROW.lanes  # of a warpgroup
WARPS = THREADS // LANES
# Of a block that has a multiprocessor's registers, by the number of warpgroups that multiply: what
# a thread of the one that copies keeps, and what each of theirs takes.
MOVED_REGISTERS = {2: (40, 232), 3: (32, 160), 4: (24, 112)}

_PLAIN = {
    "wgmma_fence": "wgmma.fence.sync.aligned;",
    "wgmma_commit": "wgmma.commit_group.sync.aligned;",
    "wgmma_wait": "wgmma.wait_group.sync.aligned {number};",
    "wgmma_take": "setmaxnreg.inc.sync.aligned.u32 {number};",
    "wgmma_give": "setmaxnreg.dec.sync.aligned.u32 {number};",
    "fence_proxy_async": "fence.proxy.async.shared::cta;",
}
_WARPGROUP_BARRIER = f"""
__device__ __forceinline__ void tvm_fusion_warpgroup_barrier(int number) {{
  asm volatile("bar.sync %0, {THREADS};" :: "r"(number) : "memory");
}}
"""
# One statement: registers that an instruction still reads or writes must not be touched, which a
# compiler of several statements does not know of fragments of A.
_FRAGMENTS = """
__device__ __forceinline__ void {name}(float* acc, const void* a, const void* tile) {{
  const unsigned* x = (const unsigned*)a;
  unsigned place = (unsigned)__cvta_generic_to_shared(tile);
  unsigned long long b = (unsigned long long)((place & 0x3FFFF) >> 4) | ({leading}ull << 16)
                       | ({stride}ull << 32) | (1ull << 62);
  asm volatile("{{\\n\\t.reg .b64 b;\\n\\t.reg .pred p, q;\\n\\t"
      "setp.ne.b32 p, {is_added}, 0;\\n\\tsetp.ne.b32 q, 1, 0;\\n\\t"
      "wgmma.fence.sync.aligned;\\n\\t"
{instructions}
      "wgmma.commit_group.sync.aligned;\\n\\t{wait}}}"
      : {outputs}
      : {inputs}, "l"(b)
      : "memory");
}}
"""
_WAIT = "wgmma.wait_group.sync.aligned 0;\\n\\t"
_FRAGMENTS_INSTRUCTION = """\
      "add.s64 b, %{b}, {step};\\n\\t"
      "{instruction} "
      "{{{acc}}}, {{{a}}}, b, {p}, 1, 1, {trans};\\n\\t\""""


def multiply(
    dtypes: tuple[str, str],
    n: int,
    acc: ir.TensorLoad,
    a: tuple[Operand, ir.Expr],
    b: tuple[Operand, ir.Expr],
    is_added: ir.Expr,
) -> tirx.Stmt:
    """Issue ``acc = a * b``, or ``acc += a * b`` where ``is_added``, of operands in shared memory.

    Parameters
    ----------
    dtypes
        Types of A and of B. Only half types may be other than contiguous along K.
    n
        Columns, a multiple of 8 up to 256; of bytes, of 16 above 32.
    acc
        The first of a thread's n / 2 accumulators: int32 for int8 and uint8, else float32.
    a, b
        How the operands lie, and their descriptors.
    """
    row, count = newest("wgmma", *dtypes), n // 2
    kinds = [OPERAND_TYPES[dtype] for dtype in dtypes]
    sums = SUM_TYPES[row.sums]
    c_type, constraint = ("int", "r") if row.sums == "int32" else ("float", "f")
    transposed = [int(not operand.is_k_contiguous) for operand, _ in (a, b)]
    # Signs, which integers lack, and orders of A and B, which half types alone have.
    modifiers = {"f32": ", 1, 1", "s32": ""}[sums]
    if row.is_mn_major:
        modifiers += f", {transposed[0]}, {transposed[1]}"
    elif any(transposed):
        raise ValueError(f"wgmma takes {' and '.join(dtypes)} contiguous along K alone")
    shape = f"m64n{n}k{row.k}"
    name = (
        f"tvm_fusion_wgmma_{shape}_{'_'.join(dict.fromkeys(kinds))}_{transposed[0]}{transposed[1]}"
    )
    source = f"""
__device__ __forceinline__ void {name}({c_type}* acc, unsigned long long a, unsigned long long b,
                                       bool is_added) {{
  asm volatile("{{ .reg .pred is_added; setp.ne.b32 is_added, %{count + 2}, 0; "
               "{ptx(row, *dtypes, n)} "
               "{{{_registers(0, count)}}}, %{count}, %{count + 1}, "
               "is_added{modifiers}; }}"
               : {_sums(count, constraint)}
               : "l"(a), "l"(b), "r"((int)is_added));
}}
"""
    call = cuda_func_call(name, tirx.address_of(acc), a[1], b[1], is_added, source_code=source)
    return tirx.Evaluate(call)


def multiply_fragments(
    dtype: str,
    n: int,
    k: int,
    acc: ir.TensorLoad,
    a_frag: ir.TensorLoad,
    b: tuple[Operand, ir.TensorLoad],
    is_added: bool,
    is_waited_for: bool = True,
) -> tirx.Stmt:
    """Compute ``acc = a * b``, or ``acc += a * b``, with A in registers, as one group.

    Parameters
    ----------
    dtype
        Type of A and B.
    n, k
        Columns of B, a multiple of 8 up to 256, and its rows, a multiple of 16.
    acc
        The first of a thread's n / 2 accumulators.
    a_frag
        The first of a thread's fragments of A: for 16 of k four values of row groupID, then four of
        row groupID + 8.
    b
        How B lies, and its first element in shared memory, aligned to 1024 bytes.
    is_added
        Whether the accumulators hold terms already.
    is_waited_for
        Whether it is done afterwards; otherwise the fragments are kept until :func:`wait_for`.
    """
    layout, tile = b
    short, count, steps = PTX_TYPES[dtype], n // 2, k // K
    order = "nk" if layout.is_k_contiguous else "kn"
    name = f"tvm_fusion_wgmma_m64n{n}k{k}_{short}_{order}_{layout.panel_bytes}_{int(is_added)}"
    name += "" if is_waited_for else "_issue"
    instructions = [
        _FRAGMENTS_INSTRUCTION.format(
            b=count + 4 * steps,
            step=layout.step(k16),
            instruction=ptx(newest("wgmma", dtype, dtype), dtype, dtype, n),
            acc=_registers(0, count),
            a=_registers(count + 4 * k16, 4),
            p="p" if k16 == 0 else "q",
            trans=int(not layout.is_k_contiguous),
        )
        for k16 in range(steps)
    ]
    words = [4 * k16 + i for k16 in range(steps) for i in (0, 2, 1, 3)]
    source = _FRAGMENTS.format(
        name=name,
        leading=layout.leading,
        stride=EIGHT_ROWS,
        is_added=int(is_added),
        wait=_WAIT if is_waited_for else "",
        instructions="\n".join(instructions),
        outputs=_sums(count),
        inputs=", ".join(f'"r"(x[{i}])' for i in words),
    )
    addresses = [tirx.address_of(x) for x in (acc, a_frag, tile)]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))


def _registers(first: int, count: int) -> str:
    return ", ".join(f"%{i}" for i in range(first, first + count))


def _sums(count: int, constraint: str = "f") -> str:
    return ", ".join(f'"+{constraint}"(acc[{i}])' for i in range(count))


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


def wait_for(
    acc: ir.TensorLoad,
    count: int,
    pending: int = 0,
    a_frag: tuple[ir.TensorLoad, int] | None = None,
    is_twin: bool = False,
) -> tirx.Stmt:
    """Wait for groups; what reads these accumulators, of float32, stays behind.

    Compilers know nothing of a wait that does not name the registers, and may move their uses.

    Parameters
    ----------
    pending
        How many groups, the last ones, may be pending still.
    a_frag
        Fragments that a product read, and how many 32-bit words: they are written behind alone.
    is_twin
        Whether another branch waits, too: what stands in both, compilers move before the branch.
    """
    held, words = a_frag or (None, 0)
    name = f"tvm_fusion_wgmma_wait_for_{count}" + (f"_{pending}" if pending else "")
    name += (f"_{words}" if words else "") + ("_twin" if is_twin else "")
    note = " // of the other branch" if is_twin else ""
    a = "" if held is None else ", void* a"
    outputs = _sums(count) + "".join(f', "+r"(((unsigned*)a)[{i}])' for i in range(words))
    source = f"""
__device__ __forceinline__ void {name}(float* acc{a}) {{
  asm volatile("wgmma.wait_group.sync.aligned {pending};{note}" : {outputs} :: "memory");
}}
"""
    addresses = [tirx.address_of(x) for x in (acc, held) if x is not None]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))


def warpgroup_barrier(group: ir.Expr) -> tirx.Stmt:
    """Wait for all threads of a warpgroup, the ``group``-th that has a barrier of its own."""
    return tirx.Evaluate(
        cuda_func_call(
            "tvm_fusion_warpgroup_barrier",
            tirx.Cast("int32", group) + tirx.const(1, "int32"),  # 0 is that of the block
            source_code=_WARPGROUP_BARRIER,
        )
    )


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
