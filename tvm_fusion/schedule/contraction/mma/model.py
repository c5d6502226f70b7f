"""The analytical model of a tiled GEMM's time with mma.sync.

A configuration's time is estimated in clocks of a multiprocessor as the longer, and an eighth of
the shorter, of

    memory   launch + bytes of A, B, C and what the epilogue reads / what memory delivers
    tiles    launch + waves * (k_tiles * step + epilogue)
    sums     of split-K without clusters: next launch + waves * (all ranks' sums + epilogue)
    step     the longer of: the blocks of a multiprocessor, each with the slowest of mma, shared
             memory and L2; one block alone, by the latency of its copies and of its k16
    epilogue the longer of: the elements of a multiprocessor; those of a thread, whose loads and
             computation hardly overlap

Fitted to 117 measured times of 19 products, it is off by 9 % (root mean square of logarithms), and
what it picks is 2 % slower than the best measured. Of split-K without clusters it is off by 7 % for
15 times: 64x14336x4096 took 58.0 us with one rank, 47.0 with 3 and 39.5 with 8; 128x3072x768 7.3 us
with one and 7.9 with 4. The epilogue was fitted later, to 293 times of 56 products, most of few
terms on an H100: what it picks of them is 4 % slower than the best, 6 % before.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from ....core.tir.expressions import is_expensive
from ....device import Device
from ....program.stage import Axis
from ...gpu.launch import STATIC_SHARED_BYTES
from ...instructions.amd import HALF_FLOP_PER_CLOCK, L2_BYTES_PER_CLOCK
from ...instructions.nvidia import FLOAT8_TYPES
from ..problem.result_traffic import read_bytes, written_bytes
from ..problem.results import Result
from ..tile.problem import GemmProblem, Sizes
from ..tile.results.vectors import result_vectors
from ..tile.shape import REGISTER_FILE, TileConfig
from .wave_tiles import L1_BYTES, LATENCY, NEXT_LAUNCH, OF_L3, wave_clocks

RESERVED_SHARED = 1024  # of every block, by the device
# Of the registers that a thread would take: ptxas makes do with them where blocks have to share.
# 6772x82x6824 with GELU and a residual (H200): 126 us with tiles of 128x128 and one block of 256
# threads, 85 with two of 128 registers; of 64x128 99 with two, 115 with four that spill.
SQUEEZED = 7 / 8
ALLOCATED = 8  # registers of a thread at a time


@dataclass(frozen=True)
class Rates:
    """What a multiprocessor does, as fitted to measured times.

    Those of an epilogue (``element`` to ``thread_slice``, ``EXPENSIVE``, ``READ``) are of an H100,
    the others of an H200: one architecture, with the same multiprocessors.
    """

    # Multiply-adds of half types on tensor cores by ``mma.sync``, in a clock; twice as many of
    # bytes, half as many of float32.
    mma: float = 1025.0
    shared: float = 128.0  # bytes from and to shared memory in a clock
    l2: float = 45.0  # bytes from L2 in a clock, all multiprocessors busy
    l1: float = 45.0  # the same of one alone
    partial: float = 45.0  # bytes of partial sums between two kernels in a clock
    # Bytes from memory in a clock, all multiprocessors busy: of an H200; an H100 has 12.5.
    dram: float = 18.4
    latency: float = 1465.0  # clocks from the issue of a copy to its arrival
    # Clocks of a k16 that no other warp hides: ldmatrix, mma, a share of a barrier.
    step: float = 30.0
    # The same of float32 that is split, besides its products: 24 instructions for each four.
    split: float = 200.0
    # How much longer products take of split float32, and of float8 where ``mma.sync`` converts it:
    # from compute capability 9.0 on.
    of_split: float = 1.16
    of_float8: float = 2.8
    epilogue: float = 55.0  # clocks of an epilogue
    # Clocks of each of a multiprocessor's elements, and of each further warp that has terms
    # of its sum.
    element: float = 0.11
    slice: float = 0.08
    # The same of each element of a thread.
    thread: float = 24.0
    thread_slice: float = 18.0
    # Clocks of an element whose sums other blocks of a cluster have, or a kernel before.
    cluster_element: float = 0.38
    # Clocks of barriers between the blocks of a cluster, and of their launch, of each doubling.
    cluster: float = 2300.0
    launch: float = 3600.0  # clocks of a launch until the first copies arrive
    # Clocks from the end of a kernel to the start of the next one of the same product.
    next_launch: float = 1200.0
    # Bytes of a result from and to memory: those that are written count half as much again.
    result: float = 3.0
    own: float = 1.0  # a clock of the device, in those of all figures here


RATES = Rates()
EXPENSIVE = 0.08  # clocks of an element, of an epilogue with GELU
READ = 90.0  # clocks of a thread's element, of one that reads as many elements
WRITTEN = 1.5  # times the bytes of results
# Of results that are stored one by one: 2964x100x1905 took 47 us in clusters of 2, 17 without.
SCALARS = 1.4


def rates_of(problem: GemmProblem, device: Device) -> Rates:
    """Return the rates of a problem's epilogue, and of an AMD GPU by its figures.

    Of these nothing was measured: in units of the time of as many products as ``Rates.mma``,
    memory has what the data sheet says next to the peak of half types, and another kernel of the
    product takes as long to launch as the planner assumes. What takes clocks of its own, such as
    the latency of memory, is shorter in these units where a clock has fewer products.
    """
    results, rates = problem.contraction.results, RATES
    peak, memory = device.peak_flops.get("float16"), device.memory_bandwidth
    if problem.is_amd and peak and memory:
        kind = device.peak_flops.get(problem.mma.kind, peak) / peak * problem.item_bytes / 2
        own = HALF_FLOP_PER_CLOCK[device.arch] / (2 * rates.mma)
        dram = memory / peak * 2 * rates.mma
        hertz = peak / (2 * rates.mma * (device.sm_count or 1))
        partial = dram * (OF_L3 if device.l3_bytes else 1)
        rates = replace(rates, mma=rates.mma * kind, dram=dram, partial=partial, own=own)
        rates = replace(rates, next_launch=NEXT_LAUNCH * hertz, latency=LATENCY * own)
        rates = replace(rates, shared=rates.shared / own, epilogue=rates.epilogue * own)
        rates = replace(rates, l2=L2_BYTES_PER_CLOCK[device.arch] / own, l1=L1_BYTES / own)
    return replace(
        rates,
        element=RATES.element + EXPENSIVE * any(is_expensive(r.value) for r in results),
        thread=RATES.thread + READ * (_result_traffic(problem)[1] > 0),
        cluster_element=SCALARS if result_vectors(problem).width == 1 else RATES.cluster_element,
        result=result_bytes(problem),
    )


def result_bytes(problem: GemmProblem) -> float:
    """Count the bytes of a result from and to memory, as :class:`Rates` has them."""
    written, read = _result_traffic(problem)
    return WRITTEN * written + read


def _result_traffic(problem: GemmProblem) -> tuple[float, float]:
    written, read = _traffic(problem.contraction.results, problem.m_axes, problem.n_axes)
    return written / problem.contraction.pooled, read / problem.contraction.pooled


@lru_cache(maxsize=256)  # asked for each candidate of a product
def _traffic(
    results: tuple[Result, ...], m_axes: tuple[Axis, ...], n_axes: tuple[Axis, ...]
) -> tuple[int, int]:
    return written_bytes(results), read_bytes(results, m_axes, n_axes)


def fits(shape: TileConfig, sizes: Sizes, device: Device) -> bool:
    """Whether a block is launched, and its pipeline and the blocks of a cluster have tiles of K."""
    shared = device.shared_memory_per_block or STATIC_SHARED_BYTES
    steps, operands = k_tiles(shape, sizes), shape.operands
    is_copied = operands.is_async and not (operands.staged_a or operands.staged_b)
    return (
        shape.shared_bytes <= shared
        and shape.stages <= max(3, steps + 1)
        and (shape.stages <= 3 or is_copied)
        and (shape.split_k == 1 or steps >= 2)
    )


def k_tiles(shape: TileConfig, sizes: Sizes) -> int:
    """Count the tiles of K that a block adds up."""
    return -(-sizes.k // (shape.block_k * shape.split_k))


def blocks_per_sm(shape: TileConfig, device: Device) -> int:
    """Count the blocks that a multiprocessor holds at once."""
    shared = device.shared_memory_per_sm or STATIC_SHARED_BYTES
    threads = (device.max_threads_per_sm or 1024) // shape.threads
    least = math.ceil(SQUEEZED * shape.registers_at_most / ALLOCATED) * ALLOCATED
    file, reserved = REGISTER_FILE, RESERVED_SHARED
    if shape.operands.is_amd:
        file, reserved = device.registers_per_block or REGISTER_FILE, 0
    registers = file // (least * shape.threads)
    memory = shared // (shape.shared_bytes + reserved)
    return max(1, min(threads, registers, memory))


def residency(shape: TileConfig, sizes: Sizes, device: Device) -> tuple[int, int]:
    """Count blocks that share the busiest multiprocessor, and how many rounds of them there are."""
    sms, blocks = device.sm_count or 1, _blocks(shape, sizes)
    resident = min(blocks_per_sm(shape, device), -(-blocks // sms))
    return resident, -(-blocks // (sms * resident))


def _blocks(shape: TileConfig, sizes: Sizes) -> int:
    return sizes.row_tiles(shape.block_m) * -(-sizes.n // shape.block_n) * shape.split_k


def estimated_clocks(
    shape: TileConfig, sizes: Sizes, device: Device, rates: Rates = RATES
) -> float:
    """Estimate the time of a product, in clocks of a multiprocessor."""
    resident, waves = residency(shape, sizes, device)
    total = waves * block_clocks(shape, sizes, device, resident, rates) + rates.launch
    dram = memory_clocks(shape, sizes, device, rates) + rates.launch
    return overlapped(total, dram) + reduction_clocks(shape, sizes, device, rates)


def reduction_clocks(
    shape: TileConfig, sizes: Sizes, device: Device, rates: Rates = RATES
) -> float:
    """Estimate the kernel that adds up the sums of split-K; 0 without it."""
    if not shape.has_workspace:
        return 0.0
    whole = replace(shape, split_k=1, stages=2)
    resident, waves = residency(whole, sizes, device)
    elements = resident * shape.block_m * shape.block_n
    read = 4 * shape.split_k * shape.warps_k * elements / rates.partial
    of_thread = rates.thread * shape.block_m * shape.block_n / shape.threads
    block = rates.latency + read + rates.epilogue
    block += rates.own * max(RATES.cluster_element * elements, of_thread)
    return rates.next_launch + waves * block


def block_clocks(
    shape: TileConfig, sizes: Sizes, device: Device, resident: int, rates: Rates = RATES
) -> float:
    """Estimate the time of a block that shares its multiprocessor with others of its kind.

    Parameters
    ----------
    shape, sizes, device
        The block's tile, the product and the device.
    """
    stage, steps = shape.stage_bytes, shape.block_k // shape.operands.k_step
    warps = shape.warps_m * shape.warps_n
    of_halves = shape.block_k * shape.operands.item_bytes // 2
    mma = shape.block_m * shape.block_n * of_halves * shape.operands.products / rates.mma
    if shape.operands.products > 1:
        mma *= rates.of_split
    elif shape.operands.a_dtype in FLOAT8_TYPES and device.tma:
        mma *= rates.of_float8
    read = warps * (shape.warp_m + shape.warp_n) * shape.block_k * shape.operands.item_bytes
    ahead = shape.stages - 1 if shape.operands.is_async else 1  # registers hold one tile
    step = rates.step
    if shape.operands.products > 1:
        step = rates.split + mma / steps / (shape.warps_m * shape.warps_n) * 4
    alone = step * steps / shape.warps_k
    if shape.operands.is_amd:
        mma, alone = wave_clocks(shape, mma, rates.own)
    alone = max(alone, rates.latency / ahead)
    sms = device.sm_count or 1
    l2 = min(rates.l1, rates.l2 * sms / min(sms, _blocks(shape, sizes)))
    busy = resident * max(mma, (read + stage) / rates.shared, stage / l2)
    epilogue = rates.epilogue
    if shape.has_workspace:
        written = 4 * shape.warps_k * shape.block_m * shape.block_n
        epilogue += resident * written / rates.partial
        return k_tiles(shape, sizes) * max(busy, alone) + epilogue
    elements = shape.block_m * shape.block_n / shape.split_k
    if shape.split_k > 1:
        epilogue += rates.cluster * math.log2(shape.split_k)
        epilogue += rates.cluster_element * resident * elements
    elif not shape.operands.is_async:  # not fitted again
        epilogue += rates.own * RATES.cluster_element * resident * elements
    else:
        others = shape.warps_k - 1
        of_thread = (rates.thread + rates.thread_slice * others) * elements / shape.threads
        epilogue += max((rates.element + rates.slice * others) * resident * elements, of_thread)
    return k_tiles(shape, sizes) * max(busy, alone) + epilogue


def memory_clocks(shape: TileConfig, sizes: Sizes, device: Device, rates: Rates = RATES) -> float:
    """Estimate the time of a product's bytes from and to memory, all multiprocessors busy."""
    batch, m, n, k = sizes
    read = shape.operands.item_bytes * (m * k + k * n)
    return batch * (read + rates.result * m * n) / (rates.dram * (device.sm_count or 1))


def overlapped(total: float, dram: float) -> float:
    """Take arithmetic and memory together: they overlap, not quite; the shorter counts a little."""
    return max(total, dram) + min(total, dram) / 8
