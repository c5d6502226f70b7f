"""Tiles in shared memory: vector copies, and barriers that kernels place.

The accesses are device functions that take addresses, which TVM 0.27 does not count as accesses:
it places no barriers for them. All memory of a kernel that uses them is one buffer, and the kernel
calls :func:`block_barrier` itself.
"""

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ....core.tir.loops import index
from .cp_async import wait_with

CHUNK_BYTES = 16

_VECTORS = {4: ("unsigned", "*"), 8: ("uint2", "xy"), 16: ("uint4", "xyzw")}
_BARRIER = """
__device__ __forceinline__ void tvm_fusion_block_barrier() {
  __syncthreads();
}
"""
_CLUSTER_BARRIER = """
__device__ __forceinline__ void tvm_fusion_cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
               ::: "memory");
}
"""


def touch(buffer: ir.Var, element: int) -> tirx.Stmt:
    """Keep a buffer's extent: TVM 0.27 shrinks it to the last element whose address is taken."""
    return tirx.Evaluate(tirx.address_of(tirx.BufferLoad(buffer, [index(element)])))


def load_shared(to: ir.TensorLoad, element: ir.TensorLoad, size: int) -> tirx.Stmt:
    """Load 4, 8 or 16 aligned bytes of shared memory into registers."""
    kind, fields = _VECTORS[size]
    words = [f"word[{i}] = value{'' if f == '*' else '.' + f};" for i, f in enumerate(fields)]
    name = f"tvm_fusion_load_shared_{size}"
    source = f"""
__device__ __forceinline__ void {name}(void* to, const void* from) {{
  unsigned* word = (unsigned*)to;
  {kind} value = *(const {kind}*)from;
  {" ".join(words)}
}}
"""
    return _call(name, source, tirx.address_of(to), tirx.address_of(element))


def store_shared(to: ir.TensorLoad, element: ir.TensorLoad, size: int) -> tirx.Stmt:
    """Store 4, 8 or 16 bytes of registers to shared memory, aligned."""
    kind, fields = _VECTORS[size]
    words = ", ".join(f"word[{i}]" for i in range(len(fields)))
    value = words if size == 4 else f"make_{kind}({words})"
    name = f"tvm_fusion_store_shared_{size}"
    source = f"""
__device__ __forceinline__ void {name}(void* to, const void* from) {{
  const unsigned* word = (const unsigned*)from;
  *({kind}*)to = {value};
}}
"""
    return _call(name, source, tirx.address_of(to), tirx.address_of(element))


def load_cluster(to: ir.TensorLoad, element: ir.TensorLoad, size: int, rank: ir.Expr) -> tirx.Stmt:
    """Load 4, 8 or 16 bytes from the same place of another block's shared memory.

    Parameters
    ----------
    to
        The first element of registers.
    element
        The place in the block's own shared memory.
    size
        Bytes.
    rank
        The other block's number in the cluster.
    """
    words = range(size // 4)
    vector = {1: "", 2: ".v2", 4: ".v4"}[len(words)]
    places = ", ".join(f"%{i}" for i in words)
    places = places if size == 4 else f"{{{places}}}"
    outputs = ", ".join(f'"=r"(word[{i}])' for i in words)
    name = f"tvm_fusion_load_cluster_{size}"
    source = f"""
__device__ __forceinline__ void {name}(void* to, const void* from, int rank) {{
  unsigned* word = (unsigned*)to;
  unsigned place = (unsigned)__cvta_generic_to_shared(from);
  asm volatile("{{ .reg .u32 there; "
               "mapa.shared::cluster.u32 there, %{size // 4}, %{size // 4 + 1}; "
               "ld.shared::cluster{vector}.u32 {places}, [there]; }}"
               : {outputs} : "r"(place), "r"(rank) : "memory");
}}
"""
    rank = rank if str(rank.ty.dtype) == "int32" else tirx.Cast("int32", rank)
    return _call(name, source, tirx.address_of(to), tirx.address_of(element), rank)


def cluster_barrier() -> tirx.Stmt:
    """Wait for all threads of the cluster; what they wrote to shared memory is there then."""
    return _call("tvm_fusion_cluster_barrier", _CLUSTER_BARRIER)


def block_barrier() -> tirx.Stmt:
    """Wait for all threads of the block."""
    return _call("tvm_fusion_block_barrier", _BARRIER)


def wait_and_barrier(pending: int) -> tirx.Stmt:
    """Wait until all but the last few commit groups of every thread of the block are there."""
    return wait_with(f"tvm_fusion_cp_async_wait_{pending}_block", pending, "__syncthreads")


def _call(name: str, source: str, *arguments: ir.Expr) -> tirx.Stmt:
    return tirx.Evaluate(cuda_func_call(name, *arguments, source_code=source))
