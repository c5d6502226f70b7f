"""DLight's GPU rules, each tried on its own, with a check of what the device can launch."""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from ...device import Device, parse
from ..guard import Rule
from ..launches import alternatives

_MIN_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"  # of TVM's generator of CUDA
ALL = 0xFFFFFFFF  # threads that take part in an exchange: every one of a warp

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
# What a kernel may declare statically on every device; more must be asked for at launch.
STATIC_SHARED_BYTES = 48 * 1024
VECTOR_BYTES = 16  # what a thread moves at once
# What CUDA moves in vectors; elements of other types move one by one.
VECTOR_TYPES = frozenset({"float32", "float16", "bfloat16", "int32"})


def gpu_rules() -> list[Rule]:
    """Matmul, GEMV, reductions, and a rule that fits everything, in DLight's own order."""
    gpu = dlight.gpu
    kinds = (gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Fallback)
    return [rule(kind()) for kind in kinds]


def check_gpu(func: tirx.PrimFunc, target: Target) -> str | None:
    """Say why a scheduled function cannot be launched on the target; ``None`` if it can."""
    threads = int(target.attrs.get("max_num_threads", 1024))
    shared = int(target.attrs.get("max_shared_memory_per_block", STATIC_SHARED_BYTES))
    limits = {"max_threads_per_block": threads, "max_shared_memory_per_block": shared}
    for one in alternatives(func):
        lowered = _LOWER_BLOCKS(tvm.IRModule({"main": one}))["main"]
        fits = _declared_bytes(lowered) <= STATIC_SHARED_BYTES
        if not fits or not s_tir.analysis.verify_gpu_code(_with_static_grid(lowered), limits):
            size = shared if fits else STATIC_SHARED_BYTES
            return f"its blocks need more than {threads} threads or {size} bytes of shared memory."
    return None


def resident(body: tirx.Stmt, blocks: int) -> tirx.Stmt:
    """Tell CUDA's compiler how many blocks of a kernel a multiprocessor is to hold at once.

    Left alone, it saves registers for more than there are, and reads late. It surrounds the body of
    the loop over blocks; as an attribute of a PrimFunc it is lost.
    """
    count = tirx.IntImm("int32", blocks)
    return tirx.AttrStmt(tirx.IntImm("int32", 0), _MIN_BLOCKS, count, body)


def has_tensor_cores(target: Target | Device) -> bool:
    """Whether a GPU multiplies fragments of 16 terms of either half type: from sm_80 on."""
    device = target if isinstance(target, Device) else parse(target).device
    number = "".join(c for c in device.arch if c.isdigit())
    return device.kind == "cuda" and int(number or 0) >= 80


def _with_static_grid(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let a symbolic number of blocks be one: TVM's analysis dies of it, and blocks are alike."""

    def one_block(attr: tirx.AttrStmt) -> tirx.AttrStmt:
        if attr.attr_key != "thread_extent" or isinstance(attr.value, tirx.IntImm):
            return attr
        one = tirx.IntImm(str(attr.value.ty.dtype), 1)
        return tirx.AttrStmt(attr.node, attr.attr_key, one, attr.body)

    body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, one_block), order="post")
    return func.with_body(body)


def _declared_bytes(func: tirx.PrimFunc) -> int:
    """Count the shared memory that a lowered function declares, rather than asks for at launch."""
    found: list[tirx.AllocBuffer] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, found.append))
    buffers = [stmt.buffer for stmt in found if stmt.buffer.scope() == "shared"]
    return sum(math.prod(map(int, b.shape)) * DataType(str(b.dtype)).itemsize for b in buffers)


def rule(rule: ScheduleRule) -> Rule:
    """Wrap one of DLight's rules."""

    def apply(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        space = rule.apply(func, target, False)
        return space[0] if isinstance(space, list) else space

    return Rule(f"dlight.{type(rule).__name__}", apply)
