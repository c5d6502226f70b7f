"""Limits of GPU kernels: vector sizes, static shared memory, launch bounds."""

from __future__ import annotations

from tvm import tirx

_MIN_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"  # of TVM's generator of CUDA
# What a kernel may declare statically on every device; more is requested at launch.
STATIC_SHARED_BYTES = 48 * 1024
VECTOR_BYTES = 16  # of the widest load or store of a thread
# Types with vector loads and stores in CUDA; others are accessed one by one.
VECTOR_TYPES = frozenset({"float32", "float16", "bfloat16", "int32"})


def min_blocks_per_sm(body: tirx.Stmt, blocks: int) -> tirx.Stmt:
    """Set the ``minBlocksPerMultiprocessor`` launch bound of a kernel.

    Left alone, CUDA's compiler saves registers for more blocks than there are, and loads late. The
    bound surrounds the body of the loop over blocks; as an attribute of a PrimFunc it is lost.
    """
    count = tirx.IntImm("int32", blocks)
    return tirx.AttrStmt(tirx.IntImm("int32", 0), _MIN_BLOCKS, count, body)
