"""The design space of a row kernel on a GPU: every configuration that fits the device.

``default_config`` chooses the default by rules; ``configs`` enumerates what a tuner may measure
instead. Each is plain data; the kernel (rows/gpu) is made of any of them.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ....device import Device
from ...index.design_space import Kernels
from ..program.emit import static_volume
from ..program.passes import lanes_are_rows
from ..program.row_program import RowProgram
from .config import WARP_SIZE, RowConfig, blocks_per_sm, longest_loop
from .forms import default_config
from .vectorize import vectorize

VECTORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)  # of a row that a thread computes
ROWS = (1, 2, 4, 8)  # of a block
WORKING_REGISTERS = (28, 36, 44)  # besides those that hold the row
FLAGS = (False, True)
KERNELS = Kernels(
    {
        RowConfig: (
            "rows",
            (
                *("threads", "rows", "row_elements", "min_blocks_per_sm"),
                *("keep_packed", "one_pass_variance", "mask_tail", "groups_per_block"),
            ),
        )
    }
)
LEAST_THREADS = 64  # a block of fewer hides no latency


def configs(program: RowProgram, device: Device) -> Iterator[RowConfig]:
    """Enumerate configurations, the default first.

    Yields
    ------
    RowConfig
        Each one once. Only the default where threads run along neighbouring rows, or where a
        reduction is one thread's.
    """
    chosen = default_config(program, device)
    found = {chosen}
    yield chosen
    loop = longest_loop(program)
    vectors = vectorize(program, loop)
    if chosen.rows_first or lanes_are_rows(program) or any(axis.size is None for axis in loop):
        return
    count = vectors.count(static_volume(loop, 1))
    is_cuda = device.kind == "cuda"  # others have neither this asm nor this launch bound
    for each, rows in itertools.product(VECTORS, ROWS):
        threads = _threads(-(-count // each), device.warp_size or WARP_SIZE, chosen)
        shape = replace(chosen, threads=threads, rows=rows)
        if not _fits(shape, device):
            continue
        of_row = -(-count // threads) * vectors.width // 2  # registers of half-type elements
        tails = FLAGS[: 1 + (count % threads > 0)]
        for packed, one_pass, masked in itertools.product(FLAGS[: 1 + is_cuda], FLAGS, tails):
            for working in WORKING_REGISTERS:
                blocks = blocks_per_sm(shape, of_row + working, device)
                config = replace(
                    shape,
                    row_elements=max(shape.row_elements, 2 * of_row),
                    min_blocks_per_sm=blocks if is_cuda else None,
                    keep_packed=packed,
                    one_pass_variance=one_pass,
                    mask_tail=masked,
                )
                if config not in found:
                    found.add(config)
                    yield config


def _threads(count: int, warp_size: int, chosen: RowConfig) -> int:
    """Round threads up to a power of two below a warp, and to whole warps from there on."""
    if count >= warp_size:
        return -(-count // warp_size) * warp_size
    return max(1 << (count - 1).bit_length(), min(chosen.threads, warp_size))


def _fits(config: RowConfig, device: Device) -> bool:
    threads = config.threads * config.rows
    return LEAST_THREADS <= threads <= (device.max_threads_per_block or 1024)
