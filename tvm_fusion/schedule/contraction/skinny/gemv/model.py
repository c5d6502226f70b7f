"""The analytical model of a GEMV's time on CUDA cores, in clocks of a multiprocessor.

    along K   launch + norm + heads + hypot(memory, waves * latency * vectors / IN_FLIGHT)
    along N   launch + norm + heads + memory
    memory    bytes of B / what memory delivers
    vectors   that a thread loads of B, and ``OF_A`` of those of A, which the L1 has
    waves     blocks / those that the multiprocessors hold at once

Fitted to times of kernels in decode steps of Llama-3.2-1B, Llama-3-8B and Qwen3-0.6B shapes in
float16 on an H200 (``benchmarks/llm``), in microseconds:

    along K, as (columns, slices, threads_n, stages)
    2048 -> 2048    (4, 256, 1, 1) 3.4   (1, 32, 8, 8) 4.1   (2, 32, 8, 8) 5.2
    2048 -> 3072    (1, 32, 8, 8) 6.1    (2, 32, 8, 8) 7.5                        behind a norm
    2048 -> 2x8192  (2, 32, 8, 8) 17.6   (4, 256, 1, 1) 18.8   (1, 32, 8, 8) 19.6 behind a norm
    8192 -> 2048    (1, 32, 8, 8) 11.7   (2, 32, 8, 8) 17.4
    1024 -> 4096    (1, 32, 8, 4) 5.8                              behind a norm, norms of heads
    2048 -> 128256  (4, 256, 1, 1) 116.4                                          behind a norm
    along N         4.9, 7.4, 18.7, 13.1, 8.1 for the first five

Off by 6 % (root mean square of logarithms) for 18 times along K, by 9 % for 12 along N.
"""

import math

from tvm import DataType, ir

from .....core.tir.expressions import loads
from .....core.tir.loops import constant, product
from .....device import Device
from .....ecg.work import at
from ....gpu.memory.cp_async import BYTES as VECTOR_BYTES
from ...problem.gemm_view import static_extent
from .config import REGISTER_FILE, GemvConfig

LAUNCH, LAUNCH_ALONG_N = 2800, 6800  # clocks of a launch until the first sums, and of the last
NORM, HEADS = 2350, 2200  # clocks of a norm prologue, of sums over heads in the epilogue
DRAM = 17.8  # bytes from memory in a clock, all multiprocessors busy
LATENCY, IN_FLIGHT = 1160, 4  # clocks until a vector arrives; vectors of a thread at a time
OF_A = 0.8
MAX_THREADS = 2048  # of a multiprocessor
REGISTERS = 8  # of a thread at a time


def gemv_clocks(config: GemvConfig, device: Device) -> float:
    """Estimate the time of a GEMV whose operands are loaded as they are."""
    terms = at(product([a.extent for a in config.k_axes]))
    columns = at(product([a.extent for a in config.batch])) * static_extent(config.n_axes)
    units = device.sm_count or 1
    memory = terms * columns * config.parts * _itemsize(config.b) / (DRAM * units)
    extra = NORM * (config.norm_scale is not None) + HEADS * (config.head_n > 0)
    if not config.tile.is_k_contiguous:
        return LAUNCH_ALONG_N + extra + memory
    registers = -(-config.registers // REGISTERS) * REGISTERS
    held = max(1, min(MAX_THREADS, REGISTER_FILE // registers) // config.threads)
    waves = math.ceil(at(config.blocks) / (units * held))
    steps = -(-at(config.k_tiles) // config.slices_k)
    of_a = config.m * -(-config.tile.k * _itemsize(config.a) // VECTOR_BYTES)
    vectors = steps * (config.tile.vectors * config.parts + OF_A * of_a)
    return LAUNCH + extra + math.hypot(memory, waves * LATENCY * vectors / IN_FLIGHT)


def has_model(config: GemvConfig) -> bool:
    """Whether the model is of such products: those of weights as they are, in 16 bytes along K."""
    is_plain = not any(str(x.ty.dtype).startswith(("int", "uint")) for x in loads(config.b))
    is_whole = config.tile.vector_size * _itemsize(config.b) == VECTOR_BYTES
    is_static = constant(product([a.extent for a in config.k_axes])) is not None
    return config.has_exchanges and is_plain and is_whole and is_static


def _itemsize(operand: ir.Expr) -> int:
    return max(DataType(str(x.ty.dtype)).itemsize for x in loads(operand))
