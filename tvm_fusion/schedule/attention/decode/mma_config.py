"""Tensor-core configuration of flash-decoding: which problems, warps and pipeline stages."""

from collections.abc import Sequence

from tvm import ir, tirx

from ....core.tir.expressions import call_name
from ....device import Device
from ...gpu.launch import STATIC_SHARED_BYTES, VECTOR_BYTES
from ...index.address import same
from ...instructions.table import find_half, newest
from ..problem.pattern import Pattern

# Rows and keys of a warp at once, and elements of a key and of a value which the vectors of its
# threads cover at once.
_MMA = newest("mma.sync", "float16", "float16")
MMA_ROWS, MMA_KEYS = _MMA.n, _MMA.m
MMA_DEPTH, MMA_COLUMNS = (
    lanes * (VECTOR_BYTES // 2) for lanes in (_MMA.c.lanes_per_row, _MMA.c.lanes_per_column)
)
MAX_WARPS = 8  # of a block: a multiprocessor holds one
BYTES_IN_FLIGHT = 64 * 1024  # of keys and values that a multiprocessor waits for
STEPS_IN_FLIGHT = 4  # at least, of heads of any width: one warp would wait for each of its own
REDUCE_BYTES = 32 * 1024  # of shared memory for the results of warps, which are merged there


def fits_mma(
    pattern: Pattern,
    keys: Sequence[ir.TensorLoad],
    values: Sequence[ir.TensorLoad],
    width: int,
    device: Device,
) -> bool:
    """Whether keys and values are copies of memory of one type of mma, in whole fragments."""
    types = {str(x.ty.dtype) for x in (*keys, *values)}
    depth, columns = int(pattern.depth.extent), int(pattern.column.extent)
    fits = depth % MMA_DEPTH == 0 and columns % MMA_COLUMNS == 0
    if not fits or len(types) != 1 or find_half(device, *types) is None:
        return False
    if not device.async_copy:  # its pipeline of keys and values is cp.async
        return False
    is_whole = 2 * width == VECTOR_BYTES
    return is_whole and _is_copy(pattern.k, keys) and _is_copy(pattern.v, values)


def _is_copy(operand: ir.Expr, found: Sequence[ir.TensorLoad]) -> bool:
    """Whether elements are read as they are, from one buffer or from that of appended keys."""
    if call_name(operand) == "if_then_else":
        return all(_is_copy(branch, found) for branch in operand.args[1:])
    value = operand.value if isinstance(operand, tirx.Cast) else None
    return isinstance(value, ir.TensorLoad) and any(same(value, x) for x in found)


def warps_and_stages(
    pattern: Pattern, block_m: int, keys: int | None, device: Device
) -> tuple[int, int]:
    """Choose the warps of a block, and the pipeline stages of each.

    Parameters
    ----------
    keys
        Keys of a block, roughly. Half as many warps take two steps rather than one.
    """
    limit = device.shared_memory_per_block or STATIC_SHARED_BYTES
    size, warps = stage_bytes(pattern), MAX_WARPS
    if keys is not None and keys < 2 * warps * MMA_KEYS:
        warps //= 2

    def left(warps: int) -> int:
        results = max(REDUCE_BYTES, 8 * warps * int(pattern.column.extent))
        wanted = max(BYTES_IN_FLIGHT, STEPS_IN_FLIGHT * size)
        return min(wanted, limit - results - 8 * warps * block_m)

    while warps > 1 and warps * size > left(warps):
        warps //= 2
    return warps, max(1, left(warps) // (warps * size))


def stage_bytes(pattern: Pattern) -> int:
    """Count the bytes of the keys and values of a warp's step, of a half type."""
    return 2 * MMA_KEYS * (int(pattern.depth.extent) + int(pattern.column.extent))
