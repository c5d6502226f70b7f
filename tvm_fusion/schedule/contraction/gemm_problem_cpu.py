"""A GEMM and a CPU as blocking sees them, and a blocking: plain numbers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...device import Device
from ..cpu.register_tile import VectorUnit

MAX_VECTORS = 4
CORES = 8  # if unknown
L2_BYTES = 1 << 20  # if unknown
L3_BYTES = 1 << 25  # if unknown
# What one core may fill of a level-2 cache that several share, whose size is told as a whole.
MAX_L2_BYTES = 1 << 21


@dataclass(frozen=True)
class Machine:
    """What the blocking of a GEMM reads of a CPU.

    Attributes
    ----------
    unit : VectorUnit
        Registers, for the type of the accumulators.
    cores : int
        Threads that will run.
    l2_bytes : int
        Level-2 cache of one of them.
    l3_bytes : int
        Level-3 cache of all.
    """

    unit: VectorUnit
    cores: int = CORES
    l2_bytes: int = L2_BYTES
    l3_bytes: int = L3_BYTES

    @classmethod
    def of(cls, device: Device, bits: int = 32) -> Machine:
        """Read a CPU, for accumulators of some bits."""
        l2_bytes = min(device.l2_bytes or L2_BYTES, MAX_L2_BYTES)
        unit, cores = VectorUnit.of(device).of_bits(bits), device.cores or CORES
        return cls(unit, cores, l2_bytes, device.l3_bytes or L3_BYTES)

    @property
    def panel(self) -> int:
        """Elements of a panel in one pass, and of a task's partial sums: a quarter of the cache."""
        return self.l2_bytes // 16

    @property
    def small_b(self) -> int:
        """Elements of a B that fits near every core: tasks take whole rows."""
        return 3 * self.l2_bytes // 64

    @property
    def copied(self) -> int:
        """Elements of the panels that a task copies, or of its partial sums: twice the cache."""
        return self.l2_bytes // 2

    @property
    def far_bytes(self) -> int:
        """Bytes of a tensor beyond which what one kernel wrote is far away in the next one.

        Weights, other operands, the kernels between and other processes share the cache.
        """
        return self.l3_bytes // 8

    @property
    def normalized(self) -> int:
        """Elements of the rows that a task normalizes: the cache."""
        return self.l2_bytes // 4


@dataclass(frozen=True)
class GemmProblem:
    """A GEMM as its blocking sees it.

    Attributes
    ----------
    m, n, k, batch : int or None
        Extents; ``None`` if symbolic.
    whole_k : bool
        Whether K cannot be split.
    vectors : collection of int
        Choices of nr, in vectors.
    copies : bool
        Whether each task copies its panels.
    norm_k : int, optional
        Elements of a row of A if a task normalizes the rows of its block: few tasks share rows
        then.
    """

    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    whole_k: bool = False
    vectors: Collection[int] = range(1, MAX_VECTORS + 1)
    copies: bool = False
    norm_k: int | None = None


@dataclass(frozen=True)
class Blocking:
    """The blocking of a GEMM.

    Attributes
    ----------
    mr, nr : int
        Rows and columns of a register tile; nr is whole vectors.
    block_m : int
        Rows of C of one task: whole tiles.
    mc : int
        Rows of a task that multiply one panel after the other; a divisor of block_m.
    panels : int
        Panels of nr columns of one task.
    kc : int
        K of one pass; several passes keep partial sums in a buffer between them.
    """

    mr: int
    nr: int
    block_m: int
    mc: int
    panels: int
    kc: int
