"""The design space of norms in two launches: parts of a row, and the threads of each launch.

The template chooses the default by rules; ``configs`` enumerates what a tuner may measure instead.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ....device import Device
from ....ecg.work import at
from ....program.program import Program
from ...index.design_space import distinct
from ..gpu.config import WARP_SIZE, RowConfig, longest_loop, row_config
from ..gpu.kernel import row_kernel
from ..gpu.space import LEAST_THREADS
from ..gpu.vectorize import vectorize
from ..program.emit import static_volume
from ..program.row_program import RowProgram
from .reduction import SplitReduction, split_reduction

BLOCKS_PER_SM = 16  # of both launches; with 4, a block's threads do not hold a part of 2 MB rows
MIN_PART = 1 << 11  # elements: of less, a block takes longer to start than to read
SHARES = (1.0, 0.25, 0.5, 2.0)  # of the default's most parts
VECTORS = (1, 2, 4, 8)  # of a part that a thread computes


@dataclass(frozen=True, eq=False)
class SplitRowsConfig:
    """Both row programs, and how their threads run."""

    split: SplitReduction  # the programs
    first: RowConfig
    second: RowConfig

    @property
    def parts(self) -> int:
        """Parts of a row."""
        return int(self.split.partial[0].shape[-1])

    @property
    def partial(self) -> tuple[ir.Var, ...]:
        """Workspaces between the launches."""
        return self.split.partial

    @property
    def parallelism(self) -> int:
        """Blocks of either launch."""
        return math.prod(int(extent) for extent in self.partial[0].shape)

    @property
    def bytes_between(self) -> int:
        """What is written to workspaces, and read once."""
        return 2 * 4 * self.parallelism * len(self.partial)

    def kernels(self, _program: Program, device: Device) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
        """Write both kernels."""
        return (
            row_kernel(self.split.first, self.first, device),
            row_kernel(self.split.second, self.second, device),
        )

    @property
    def plain(self) -> dict[str, int]:
        """The configuration as plain data."""
        threads = {"first_threads": self.first.threads, "second_threads": self.second.threads}
        return {"parts": self.parts, **threads}


def split_rows_config(
    program: RowProgram, device: Device, share: float = 1.0
) -> SplitRowsConfig | None:
    """Split rows until multiprocessors are full; ``None`` where the program has another form.

    Parameters
    ----------
    share
        Of the parts that are chosen by default.
    """
    size = row_size(program)
    rows = math.prod(at(axis.extent) for axis in program.rows)
    most = min(-(-BLOCKS_PER_SM * (device.sm_count or 1) // rows), size // MIN_PART)
    split = split_reduction(program, max(1, min(int(share * most), size // MIN_PART)))
    if split is None:
        return None
    first, second = (row_config(half, device) for half in (split.first, split.second))
    return SplitRowsConfig(split, first, second)


def configs(program: RowProgram, device: Device) -> Iterator[SplitRowsConfig]:
    """Enumerate configurations, the default first; none where the program has another form."""
    starts = (split_rows_config(program, device, share) for share in SHARES)
    for start in distinct((x for x in starts if x is not None), lambda one: {"parts": one.parts}):
        threads = (
            _threads(half, config, device)
            for half, config in (
                (start.split.first, start.first),
                (start.split.second, start.second),
            )
        )
        for first, second in itertools.product(*threads):
            yield replace(start, first=first, second=second)


def row_size(program: RowProgram) -> int:
    """Count the elements of a row."""
    return max(math.prod(at(a.extent) for a in stage.loop_axes) for stage in program.stages)


def _threads(program: RowProgram, chosen: RowConfig, device: Device) -> list[RowConfig]:
    """Vary the threads of a block, which reduces or maps one part; the chosen one first."""
    found = {chosen.threads: chosen}
    if chosen.rows_first:
        return [chosen]
    loop = longest_loop(program)
    vectors = vectorize(program, loop)
    count, warp_size = vectors.count(static_volume(loop, 1)), device.warp_size or WARP_SIZE
    for each in VECTORS:
        threads = -(-count // (each * warp_size)) * warp_size
        if LEAST_THREADS <= threads <= (device.max_threads_per_block or 1024):
            elements = max(chosen.row_elements, each * vectors.width)
            config = replace(chosen, threads=threads, rows=1, row_elements=elements)
            found.setdefault(threads, config)
    return list(found.values())
