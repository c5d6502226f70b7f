"""A decoded instruction: what it runs, and which registers it touches."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .group import Group
from .text import Instruction


@dataclass(frozen=True)
class Processor:
    """What decoding has to know of the architecture.

    Attributes
    ----------
    arch
        ``gfx942``.
    lanes
        Of a wave.
    """

    arch: str
    lanes: int

    @property
    def keeps_halves(self) -> bool:
        """Whether results of 16 bits leave the upper half of a register alone (RDNA)."""
        return self.lanes == 32


@dataclass
class Step:
    """One instruction, decoded.

    Attributes
    ----------
    inst
        Where it came from.
    run
        ``(group) -> None``.
    reads, writes
        Numbers of registers.
    goes_to
        Number of the step that a branch goes to.
    """

    inst: Instruction
    run: Callable[[Group], Any]
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    goes_to: int | None = None
    touched: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.touched = self.reads | self.writes


def numbers(*groups: Iterable[int]) -> frozenset[int]:
    """Join numbers of registers."""
    return frozenset(n for group in groups for n in group)
