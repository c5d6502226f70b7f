"""Configuration of a row kernel on a GPU: threads of a row, and rows of a block."""

from collections.abc import Sequence
from dataclasses import dataclass

from ....device import Device
from ....program.stage import Axis
from ...gpu.threads.block_reduce import MAX_SERIAL_WARPS, RowThreads
from ..program.emit import static_volume
from ..program.passes import lanes_are_rows
from ..program.row_program import RowProgram
from .vectorize import shares_vectors, streams_of, vectorize

THREADS = 128  # of a block of short rows
LANE_ROWS = 32  # neighbouring rows of a block whose threads run along rows
ELEMENTS_PER_THREAD = 8  # scalar elements of a row, from which on more threads pay
SYMBOLIC_ROW = 2048  # what an unknown row is taken for
SYMBOLIC_COUNT = 1024  # what an unknown number of rows is taken for
# Vectors of a row that a thread loads before more threads pay: 64 bytes in flight a thread keep
# memory busy with a quarter to a half of the threads that a multiprocessor holds, as many as fit
# with a row in their registers.
VECTORS_PER_THREAD = 4
LEAST_WHOLE = 4  # warps of an unaligned row, from which on threads are rounded down
# Most 2-element vectors of a row per thread where all rows read a common vector (a norm's scale):
# that vector is loaded in 2-element pieces too, after the last barrier. On one H100, layer norms
# with GELU of 13792x2841 float16 take 58.4 us with 9 vectors a thread and 62.5 with 15, of
# 16460x1709 43.9 (45.5), of 10328x3641 bfloat16 57.2 (58.5), of 19434x2454 69.4 (71.1).
NARROW_VECTORS = 11
THREADS_TO_FILL = 1 << 17  # below which a device has room for more threads, with less to do each
MAX_ROW_ELEMENTS = 64  # of a row that a thread keeps: the loops over them are unrolled
MAX_REGISTERS = 96  # 32-bit ones of a thread, from which on too few threads are left
MIN_THREADS = 8  # whose vectors fill a cache line
# Where the device does not say.
WARP_SIZE = 32
MAX_THREADS_PER_SM = 2048
REGISTERS_PER_SM = 1 << 16


@dataclass(frozen=True)
class RowConfig(RowThreads):
    """Configuration of a row kernel."""

    # Elements of a row that a thread keeps at most; the loops over them are unrolled.
    row_elements: int = MAX_ROW_ELEMENTS
    # 32-bit registers of a thread, of which rows get what arithmetic leaves.
    max_registers: int = MAX_REGISTERS
    # Occupancy target of the compiler; ``None`` leaves it alone, where rows share nothing, or aims
    # at what the registers of rows allow.
    min_blocks_per_sm: int | None = None
    # Whether each pass converts half-type elements again, rather than keep them in float32.
    keep_packed: bool = False
    one_pass_variance: bool = False  # whether a variance is computed together with its mean
    # Whether threads without a vector in the last step of an aligned row compute it, masked.
    mask_tail: bool = False
    # Groups of ``rows`` that a block takes one after the other, at a stride of the grid: what rows
    # share stays in registers, as do their offsets in vectors (:mod:`.row_groups`).
    groups_per_block: int = 1

    @property
    def keeps_shared(self) -> bool:
        """Whether what rows share stays in registers from group to group."""
        return self.groups_per_block > 1


def row_config(program: RowProgram, device: Device) -> RowConfig:
    """Choose the threads of a row and the rows of a block."""
    warp_size, limit = device.warp_size or WARP_SIZE, device.max_threads_per_block or 1024
    work = max(static_volume(s.loop_axes, SYMBOLIC_ROW) for s in program.stages)
    if not all(s.combine is None or s.combine.threads_can_share for s in program.stages):
        return RowConfig(1, THREADS, rows_first=True, warp_size=warp_size)
    if lanes_are_rows(program):
        if work <= 2 * ELEMENTS_PER_THREAD:
            return RowConfig(1, 2 * THREADS, rows_first=True, warp_size=warp_size)
        threads = min(_power_of_two(-(-work // ELEMENTS_PER_THREAD)), limit // LANE_ROWS, 16)
        return RowConfig(threads, LANE_ROWS, rows_first=True, warp_size=warp_size)
    longest = longest_loop(program)
    size = static_volume(longest, SYMBOLIC_ROW)
    vectors = vectorize(program, longest)
    if vectors.is_unconditional:
        count = static_volume(program.rows, SYMBOLIC_COUNT)
        is_single = streams_of(program, longest) == 1
        # Narrow accesses of several streams are too many for a thread to have in flight.
        each = VECTORS_PER_THREAD * (vectors.accesses if is_single else 1)
        threads = _threads_in_flight(vectors.count(size), each, count, warp_size)
        if is_single and vectors.origin is not None and vectors.accesses > 1:
            # Rounded down: 8 to 12 narrow vectors a thread do best.
            whole = vectors.count(size) // each // warp_size * warp_size
            threads = whole if LEAST_WHOLE * warp_size <= whole < threads else threads
        is_narrow = is_single and vectors.accesses >= 4 and shares_vectors(program)
        if is_narrow and device.kind == "cuda" and threads >= warp_size:
            more = -(-vectors.count(size) // NARROW_VECTORS)
            threads = max(threads, _whole_warps(more, warp_size))
        enough = max(MAX_SERIAL_WARPS * warp_size, -(-size // MAX_ROW_ELEMENTS))
        enough = _whole_warps(enough, warp_size)
        if is_single and vectors.width > 1 and count * enough >= THREADS_TO_FILL:
            threads = min(threads, enough)
        least = min(MIN_THREADS * vectors.accesses, warp_size)
    else:
        threads = _power_of_two(-(-size // ELEMENTS_PER_THREAD))
        if size <= warp_size * 4 * ELEMENTS_PER_THREAD:
            # A warp needs no barrier to combine its results.
            threads = min(_power_of_two(size), warp_size)
        least = 1
    if static_volume(program.rows, SYMBOLIC_COUNT) < (device.sm_count or 0):
        threads = max(threads, _whole_warps(_columns(program), warp_size))
    least = min(least, _power_of_two(size))
    threads = min(max(threads, least), limit // warp_size * warp_size)
    rows = min(max(1, THREADS // threads), _power_of_two(static_volume(program.rows, THREADS)))
    return RowConfig(threads, _floor_power(rows), warp_size=warp_size)


def blocks_per_sm(config: RowConfig, registers: int, device: Device) -> int:
    """Count the blocks of a multiprocessor whose threads have some registers each."""
    threads = config.threads * config.rows
    file = device.registers_per_block or REGISTERS_PER_SM
    most = device.max_threads_per_sm or MAX_THREADS_PER_SM
    return max(1, min(file // (threads * -(-registers // 8) * 8), most // threads))


def longest_loop(program: RowProgram) -> Sequence[Axis]:
    """Return the axes of the longest loop inside a row."""
    loops = [stage.inner or stage.reduce for stage in program.stages]
    return max(loops, key=lambda axes: static_volume(axes, SYMBOLIC_ROW))


def _columns(program: RowProgram) -> int:
    """Count the results of a reduction inside a row: a thread computes each, term after term.

    Of few rows each wants a thread of its own. On one H200, the mean of 49 pixels of 768 channels
    and its layer norm took 20.6 us of one warp, and 196 pixels of 240 channels in front of both
    products of a squeeze and excitation 24.3 (benchmarks/gpu_models).
    """
    stages = [s for s in program.stages if s.inner and s.reduce]
    return max((static_volume(s.inner, SYMBOLIC_ROW) for s in stages), default=1)


def _threads_in_flight(vectors: int, each: int, rows: int, warp_size: int) -> int:
    """Choose threads for a row: as few as keep memory busy, as many as there is room for."""
    while each > 1 and rows * -(-vectors // each) < THREADS_TO_FILL:
        each //= 2
    threads = -(-vectors // each)
    return _power_of_two(threads) if threads < warp_size else _whole_warps(threads, warp_size)


def _whole_warps(threads: int, warp_size: int) -> int:
    return -(-threads // warp_size) * warp_size


def _power_of_two(count: int) -> int:
    """Round up to a power of two."""
    return 1 << (max(count, 1) - 1).bit_length()


def _floor_power(count: int) -> int:
    """Round down to a power of two."""
    return 1 << (count.bit_length() - 1)
