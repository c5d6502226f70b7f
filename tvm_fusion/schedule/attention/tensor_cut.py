"""Which attention of few rows is for tensor cores, and how it fills shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ...device import Device
from ...ecg.intrinsic import call_name
from ..address import same
from ..gpu.launch import STATIC_SHARED_BYTES, VECTOR_BYTES
from .pattern import Pattern

# Rows and keys of a warp at once, and elements of a key and of a value which its threads' vectors
# cover at once.
TENSOR_ROWS, TENSOR_KEYS, TENSOR_DEPTH, TENSOR_COLUMNS = 8, 16, 32, 64
TENSOR_WARPS = 8  # of a block: a multiprocessor holds one
STAGED = 64 * 1024  # bytes of keys and values that a multiprocessor waits for
SHARED_BYTES = 32 * 1024  # for results of warps, which are added up


def is_tensor_work(
    pattern: Pattern, keys: Sequence[ir.TensorLoad], values: Sequence[ir.TensorLoad], width: int
) -> bool:
    """Whether keys and values are copies of memory of one half type, in whole fragments."""
    types = {str(x.ty.dtype) for x in (*keys, *values)}
    depth, columns = int(pattern.depth.extent), int(pattern.column.extent)
    fits = depth % TENSOR_DEPTH == 0 and columns % TENSOR_COLUMNS == 0
    is_half = len(types) == 1 and types <= {"float16", "bfloat16"} and 2 * width == VECTOR_BYTES
    return is_half and fits and _is_copy(pattern.k, keys) and _is_copy(pattern.v, values)


def _is_copy(operand: ir.Expr, found: Sequence[ir.TensorLoad]) -> bool:
    """Whether elements are read as they are: here or, where they were appended, there."""
    if call_name(operand) == "if_then_else":
        return all(_is_copy(branch, found) for branch in operand.args[1:])
    value = operand.value if isinstance(operand, tirx.Cast) else None
    return isinstance(value, ir.TensorLoad) and any(same(value, x) for x in found)


def staged(pattern: Pattern, rows: int, keys: int | None, device: Device) -> tuple[int, int]:
    """Choose warps of a block, and how many steps of theirs wait in shared memory.

    Parameters
    ----------
    pattern : Pattern
        The attention.
    rows : int
        Of a block.
    keys : int or None
        Of a block, roughly. Half as many warps take two steps rather than one.
    device : Device
        An NVIDIA GPU.
    """
    most = device.shared_memory_per_block or STATIC_SHARED_BYTES
    size, groups = staged_bytes(pattern), TENSOR_WARPS
    if keys is not None and keys < 2 * groups * TENSOR_KEYS:
        groups //= 2

    def left(groups: int) -> int:
        results = max(SHARED_BYTES, 8 * groups * int(pattern.column.extent))
        return min(STAGED, most - results - 8 * groups * rows)

    while groups > 1 and groups * size > left(groups):
        groups //= 2
    return groups, max(1, left(groups) // (groups * size))


def staged_bytes(pattern: Pattern) -> int:
    """Count the bytes of the keys and values of a warp's step, of a half type."""
    return 2 * TENSOR_KEYS * (int(pattern.depth.extent) + int(pattern.column.extent))
