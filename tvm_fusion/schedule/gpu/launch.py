"""Limits of GPU kernels: vector sizes, static shared memory, launch bounds."""

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...core.tir.expressions import load
from ...core.tir.loops import block, index, sequence

_MIN_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"  # of TVM's generator of CUDA
# What a kernel may declare statically on every device; more is requested at launch.
STATIC_SHARED_BYTES = 48 * 1024
VECTOR_BYTES = 16  # of the widest load or store of a thread
# Types with vector loads and stores in CUDA; others are accessed one by one.
VECTOR_TYPES = frozenset({"float32", "float16", "bfloat16", "int32"})
# Attribute of a PrimFunc: numbers of the parameters that its kernel may ask L2 for beforehand.
PREFETCHED = "tvm_fusion.prefetched"
_DECLARE = "tvm_fusion_declare"
_NOTHING = f"""
__device__ __forceinline__ void {_DECLARE}(const void* first, const void* last) {{}}
"""


def min_blocks_per_sm(body: tirx.Stmt, blocks: int) -> tirx.Stmt:
    """Set the ``minBlocksPerMultiprocessor`` launch bound of a kernel.

    Left alone, CUDA's compiler saves registers for more blocks than there are, and loads late. The
    bound surrounds the body of the loop over blocks; as an attribute of a PrimFunc it is lost.
    """
    count = tirx.IntImm("int32", blocks)
    return tirx.AttrStmt(tirx.IntImm("int32", 0), _MIN_BLOCKS, count, body)


def dependency_wait() -> tirx.Stmt:
    """Wait until all memory that kernels before wrote is visible: PTX's griddepcontrol.wait.

    For kernels that have something to do before; others wait first (deploy/dependent_launch). It
    does nothing in a kernel that was not launched early.
    """
    return _griddepcontrol("wait")


def dependents_launch() -> tirx.Stmt:
    """Let the next kernel be launched: PTX's griddepcontrol.launch_dependents.

    The first thread of a block that comes here speaks for the block. For kernels of which some
    threads end long before others; the rest say so at their ends (deploy/dependent_launch).
    """
    return _griddepcontrol("launch_dependents")


def _griddepcontrol(action: str) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.ptx.griddepcontrol", action, ""))


def storage_sync() -> tirx.Stmt:
    """Synchronize the threads of a block (``__syncthreads``), for accesses by address."""
    return tirx.Evaluate(tirx.op.tvm_storage_sync("shared"))


def block_by_address(name: str, body: tirx.Stmt, buffers: Sequence[ir.Var]) -> tirx.Stmt:
    """Wrap the body of a thread into a block that owns buffers which are accessed by address.

    TVM 0.27 declares no more of a buffer than loads and stores reach, and takes an address for the
    load of one element: the addresses of its first and last elements, of which a function without
    instructions makes no use, let it declare a buffer whole.
    """
    ends = [
        tirx.Evaluate(cuda_func_call(_DECLARE, *map(tirx.address_of, pair), source_code=_NOTHING))
        for pair in map(_ends, buffers)
    ]
    return block(name, sequence([*ends, body]), buffers)


def _ends(buffer: ir.Var) -> list[ir.TensorLoad]:
    shape = buffer.ty.shape
    return [
        load(buffer, [index(0) for _ in shape]),
        load(buffer, [index(int(d) - 1) for d in shape]),
    ]
