"""Configurations of two GEMMs back to back: the design space, the default first, and what has none.

consumers * chunks of H's columns; stages take what shared memory the weights leave, as many for
each consumer
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from tvm import ir

from ....core.contract.template import Refusal
from ....core.tir.expressions import is_expensive
from ....core.tir.loops import constant, index
from ....device import Device
from ...gpu.matrix.wgmma import MOVED_REGISTERS, WARPS, K, M
from ...gpu.memory import mbarrier
from ...gpu.memory.tma import PANEL
from ...index.address import offset, stride
from ...instructions.nvidia import HALF_TYPES
from ...instructions.table import find
from ..gpu.space import GpuGemmProblem, clocks
from ..mma.model import RATES, overlapped
from ..tile.config import is_plain
from ..tile.problem import GemmProblem
from ..tile.read_problem import gemm_problem
from ..tile.results.vectors import result_vectors
from ..tile.shape import TileConfig, TileOperands
from ..wgmma.config import WgmmaConfig
from ..wgmma.direct_epilogue import COLUMNS
from ..wgmma.operands.matrix import TmaOperand, merged, tma_operand
from .config import BackToBackConfig
from .problem import BackToBack

MOST_COLUMNS = 256  # of D: what a consumer's sums and one box hold
MOST_STAGES = 8
CHUNKS = (2 * M, M)  # columns of H at a time


def back_to_back_configs(pair: BackToBack, device: Device) -> Iterator[BackToBackConfig] | Refusal:
    """Enumerate configurations, the default first, or tell why one kernel cannot have both.

    The default has three consumers where shared memory and registers hold their tiles, two of one
    tile a block, and of H as much at once as registers hold. On an H200, 65,536 rows of 64-64-64
    take 6.84 us with three, 7.31 with four and 8.12 with two; of 128-128-128 14.99, and 16.07 with
    two and all of H at once; 3,136 rows of 96-384-96 7.73, and 7.16 with two and half of H.
    """
    names = pair.first.stage.title, pair.second.stage.title
    problems = [gemm_problem(x, device) for x in (pair.first, pair.second)]
    sentence = f"{names[0]} and {names[1]} are not two GEMMs of half types for wgmma"
    if any(p is None or not _is_of_halves(p, device) for p in problems):
        return Refusal("no_gemm", f"{sentence}.")
    first, second = (p for p in problems if p is not None)
    if first.batch or second.batch or any(p.ragged is not None for p in (first, second)):
        return Refusal("batched", f"{sentence} of one weight each.")
    if constant(first.m) is None:
        return Refusal("symbolic_rows", f"The number of rows of {names[0]} is symbolic.")
    if not _is_hidden(pair, first, second):
        return Refusal(
            "hidden_in_another_order",
            f"Rows of the operand of {names[1]} are not those that {names[0]} computes.",
        )
    if not result_vectors(first).is_plain:
        return Refusal(
            "guarded_loads",
            f"What {names[1]} reads of {names[0]} has conditional loads, or indices that are "
            "loaded themselves.",
        )
    x, w1 = (tma_operand(first, is_a, PANEL) for is_a in (True, False))
    w2 = tma_operand(second, False, PANEL)
    if x is None or w1 is None or w2 is None:
        return Refusal(
            "unaligned_rows",
            f"An operand of {names[0]} or {names[1]} is computed, or its rows have no constant "
            "stride that is a multiple of 16 bytes, as TMA needs.",
        )
    if second.n > MOST_COLUMNS:
        return Refusal(
            "too_wide", f"{names[1]} has {second.n} columns; registers hold {MOST_COLUMNS}."
        )
    found = list(_space(first, second, (x, w1), device))
    if not found:
        return Refusal(
            "too_much_shared_memory",
            f"The weights of {names[0]} and {names[1]} and two tiles of rows do not fit together "
            "into the shared memory of a block, or the accumulators not into registers.",
        )
    return iter(found)


def _space(
    first: GemmProblem,
    second: GemmProblem,
    operands: tuple[TmaOperand, TmaOperand],
    device: Device,
) -> Iterator[BackToBackConfig]:
    x, w1 = (operand.of_rows for operand in operands)
    whole, sms = -(-first.n // K) * K, device.sm_count or 1
    columns = -(-second.n // COLUMNS) * COLUMNS
    is_one_turn = -(-int(first.m) // M) <= sms
    preferred = (2, 3, 4) if is_one_turn else (3, 2, 4)
    chunks = sorted({min(c, whole) for c in CHUNKS}, reverse=True)
    for consumers, chunk in itertools.product(preferred, chunks):
        w2 = tma_operand(second, False, PANEL)
        if w2 is not None and not w2.is_k_contiguous:
            w2 = tma_operand(second, False, chunk)
        if w2 is None:
            continue
        tile_x, tile_w1 = x(M), w1(_rows(operands[1], chunk))
        tile_w2 = w2.of_rows(_rows(w2, columns))
        if tile_x is None or tile_w1 is None or tile_w2 is None:
            continue
        config = BackToBackConfig(
            _tile(first, chunk, sms, tile_x, tile_w1),
            _tile(second, columns, sms, None, tile_w2),
            chunk,
            consumers,
            stages=0,
        )
        if config.registers_needed > MOVED_REGISTERS[consumers][1]:
            continue
        room = (device.shared_memory_per_block or 0) - config.shared_bytes
        stages = min(room // (config.stage_bytes + 2 * mbarrier.BYTES), MOST_STAGES)
        if (turns := stages // consumers) > 0:
            yield replace(config, stages=turns * consumers)


def _is_of_halves(problem: GemmProblem, device: Device) -> bool:
    """Whether wgmma multiplies operands of half types."""
    types = problem.a_dtype, problem.b_dtype
    return {*types} <= {*HALF_TYPES} and find(device, "wgmma", *types) is not None


def _rows(operand: TmaOperand, columns: int) -> int:
    """Count the columns of a weight that boxes of it make up."""
    return columns if operand.is_k_contiguous else -(-columns // PANEL) * PANEL


def _tile(
    problem: GemmProblem,
    block_n: int,
    multiprocessors: int,
    a: TmaOperand | None,
    b: TmaOperand | None,
) -> WgmmaConfig:
    """Configure a problem with tiles of 64 rows, one consumer each."""
    return WgmmaConfig(
        problem,
        TileConfig(TileOperands.of(problem), M, block_n, PANEL, WARPS, warps_n=1),
        operand_a=a,
        operand_b=b,
        consumers=1,
        multiprocessors=multiprocessors,
    )


def _is_hidden(pair: BackToBack, first: GemmProblem, second: GemmProblem) -> bool:
    """Whether rows and columns of the first product are rows and terms of the second."""
    (result,) = pair.first.results
    if result.condition is not None or not is_plain(second.a):
        return False
    read = second.a
    if not isinstance(read, ir.TensorLoad) or not read.source.same_as(pair.hidden):
        return False
    width = index(second.k)
    sides = (
        (first.m_axes, first.n_axes, result.indices),
        (second.m_axes, second.k_axes, read.indices),
    )
    for rows, columns, indices in sides:
        place = offset(pair.hidden, indices)
        axes = [a.var for a in (*rows, *columns)]
        steps = {axis: stride(place, axis, axes) for axis in axes}
        if any(step is None for step in steps.values()):
            return False
        found = merged(rows, steps), merged(columns, steps)
        if [None if x is None else constant(x) for x in found] != [constant(width), 1]:
            return False
    return first.n == second.k


# The analytical model of two GEMMs back to back, in clocks of a multiprocessor.
#
#     launch + weights + memory or the longer of: tiles of a multiprocessor * work;
#                                                     tiles of a consumer * (work + chunks of H)
#     work    products and epilogues of a tile of 64 rows
#
# Beside it, what a launch of each product takes, by the models of their kernels. Fitted on one H200
# to 42 configurations of 14 pairs of layers (benchmarks/gpu/FUSED_GEMMS.md), from which it is off
# by 6 % on the average, the models of two kernels by 14 %. Of six pairs held out one kernel took
# 0.25 to 0.83 of two; 0.40 to 0.77 were estimated.
PRODUCTS = 1877.0  # multiply-adds in a clock
ELEMENT, EXPENSIVE_ELEMENT = 0.071, 0.152  # clocks of an element of an epilogue
CHUNK = 336.0  # clocks that a consumer alone waits for its products, of each chunk
WEIGHTS = 148.0  # bytes of weights in a clock


def back_to_back_clocks(config: BackToBackConfig, device: Device) -> float:
    """Estimate the time of one kernel."""
    first, second = config.first, config.second
    hidden, columns = config.chunks * config.chunk, second.tile.block_n
    work = M * hidden * (-(-first.problem.k // K) * K + columns) / PRODUCTS
    for product, count in ((first, hidden), (second, columns)):
        is_dear = any(is_expensive(r.value) for r in product.problem.contraction.results)
        work += M * count * (EXPENSIVE_ELEMENT if is_dear else ELEMENT)
    tiles = -(-config.tiles // config.blocks)
    turns = -(-config.tiles // (config.blocks * config.consumers))
    total = max(tiles * work, turns * (work + CHUNK * config.chunks))
    moved = config.tiles * M * first.problem.item_bytes * (first.problem.k + second.problem.n)
    dram = moved / (RATES.dram * (device.sm_count or 1))
    return RATES.launch + config.weight_bytes / WEIGHTS + overlapped(total, dram)


def two_kernels_clocks(pair: BackToBack, device: Device) -> float | None:
    """Estimate the time of a launch of each product; ``None`` where one is no tile."""
    tiles = [GpuGemmProblem(x, device).tile for x in (pair.first, pair.second)]
    if any(tile is None for tile in tiles):
        return None
    return sum(clocks(tile, device) for tile in tiles if tile is not None)
