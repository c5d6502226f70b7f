"""Configurations of a row kernel on a CPU: its vectors, and whether it wakes other threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ...device import Device
from ...program.program import Program
from ..cpu.schedule import PARALLEL_WORK, VectorRegisters
from ..index.design_space import Kernels
from .emit import static_volume

VECTORS = 4  # registers of a vector of a row
CHOICES = (1, 2, VECTORS, 8)


@dataclass(frozen=True)
class CpuRowConfig:
    """Configuration of a row kernel on a CPU.

    Attributes
    ----------
    width : int
        Elements of a vector.
    is_parallel : bool
        Whether the work is worth waking other threads.
    prefetches : bool
        Whether passes prefetch what the next row or pass reads.
    """

    width: int
    is_parallel: bool
    prefetches: bool

    @classmethod
    def of(cls, program: Program, device: Device) -> CpuRowConfig:
        """Choose by the work of all rows."""
        loops = [(*stage.axes, *stage.reduce) for stage in program.stages]
        work = sum(static_volume(axes, PARALLEL_WORK) for axes in loops)
        return cls(VECTORS * VectorRegisters.of(device).lanes, work >= PARALLEL_WORK, True)


KERNELS = Kernels({CpuRowConfig: ("rows", ("width", "is_parallel", "prefetches"))})


def configs(chosen: CpuRowConfig) -> Iterator[CpuRowConfig]:
    """Enumerate configurations, each once, the default first.

    Parameters
    ----------
    chosen : CpuRowConfig
        The default.
    """
    yield chosen
    widths = [chosen.width * n // VECTORS for n in CHOICES]
    for width, is_parallel, prefetches in itertools.product(widths, (False, True), (False, True)):
        config = CpuRowConfig(width, is_parallel, prefetches)
        if config != chosen:
            yield config
