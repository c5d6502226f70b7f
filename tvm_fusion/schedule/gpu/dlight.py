"""DLight's GPU rules, each tried on its own, and the check of launch limits."""

import math

import tvm
import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from ...device import device_of
from ..stage.guard import Rule
from ..stage.launches import alternatives
from .launch import STATIC_SHARED_BYTES

# TVM's analysis counts threads and memory once blocks are lowered and buffers are down to a tile.
_LOWER_BLOCKS = tvm.ir.transform.Sequential(
    [
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)


def gpu_rules() -> list[Rule]:
    """Matmul, GEMV, reductions, and a rule that fits everything, in DLight's own order."""
    gpu = dlight.gpu
    kinds = (gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Fallback)
    return [rule(kind()) for kind in kinds]


def check_gpu(func: tirx.PrimFunc, target: Target) -> str | None:
    """Say why a scheduled function cannot be launched on the target; ``None`` if it can."""
    device = device_of(target)
    threads = device.max_threads_per_block or 1024
    shared = device.shared_memory_per_block or STATIC_SHARED_BYTES
    limits = {"max_threads_per_block": threads, "max_shared_memory_per_block": shared}
    for one in alternatives(func):
        lowered = _LOWER_BLOCKS(tvm.IRModule({"main": one}))["main"]
        fits = _declared_bytes(lowered) <= STATIC_SHARED_BYTES
        if not fits or not s_tir.analysis.verify_gpu_code(_with_static_grid(lowered), limits):
            size = shared if fits else STATIC_SHARED_BYTES
            return f"its blocks need more than {threads} threads or {size} bytes of shared memory."
    return None


def _with_static_grid(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace a symbolic grid by one block: TVM's analysis fails on it, and blocks are alike."""

    def one_block(attr: tirx.AttrStmt) -> tirx.AttrStmt:
        if attr.attr_key != "thread_extent" or isinstance(attr.value, tirx.IntImm):
            return attr
        one = tirx.IntImm(str(attr.value.ty.dtype), 1)
        return tirx.AttrStmt(attr.node, attr.attr_key, one, attr.body)

    body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, one_block), order="post")
    return func.with_body(body)


def _declared_bytes(func: tirx.PrimFunc) -> int:
    """Count the shared memory that a lowered function declares, rather than requests at launch."""
    found: list[tirx.AllocBuffer] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, found.append))
    buffers = [stmt.buffer for stmt in found if stmt.buffer.scope() == "shared"]
    return sum(math.prod(map(int, b.shape)) * DataType(str(b.dtype)).itemsize for b in buffers)


def rule(rule: ScheduleRule) -> Rule:
    """Wrap one of DLight's rules."""

    def apply(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        if isinstance(rule, dlight.gpu.GEMV) and not _reduces(func):
            return None  # where nothing is reduced, it fails instead of saying so
        space = rule.apply(func, target, False)
        return space[0] if isinstance(space, list) else space

    return Rule(f"dlight.{type(rule).__name__}", apply)


def _reduces(func: tirx.PrimFunc) -> bool:
    """Whether a block has an axis of terms."""
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append))
    axes = (axis for block in blocks for axis in block.iter_vars)
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in axes)
