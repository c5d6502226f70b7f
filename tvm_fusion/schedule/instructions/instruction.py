"""A row of the table of matrix instructions."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction, ``D = A * B + C``.

    Attributes
    ----------
    family : str
        As :class:`tvm_fusion.device.model.MatrixInstruction` names it.
    text : str
        How the target's compiler knows it: a PTX instruction, or LLVM's intrinsic.
    m, n, k : int
        A is m x k, B is k x n; the largest n of wgmma.
    a_types, b_types : tuple of str
        Types of A and of B in memory, in any combination.
    kind : str
        Of the types, as :class:`~tvm_fusion.device.model.MatrixInstruction` has it.
    sums : str
        Type of C and D.
    a, c : Layout
        Where A, and C and D, lie.
    b : Layout, optional
        Where B lies; None where the instruction reads it from shared memory.
    """

    family: str
    text: str
    m: int
    n: int
    k: int
    a_types: tuple[str, ...]
    b_types: tuple[str, ...]
    kind: str
    sums: str
    a: Layout
    b: Layout | None
    c: Layout

    def __post_init__(self) -> None:
        """Check that the layouts are those of its matrices, and of as many lanes."""
        shapes = [self.a.shape, self.c.shape, self.b.shape if self.b else (self.k, self.n)]
        if shapes != [(self.m, self.k), (self.m, self.n), (self.k, self.n)]:
            raise ValueError(f"{self.text}: layouts of {shapes}")
        if len({x.lane_count for x in (self.a, self.b, self.c) if x is not None}) != 1:
            raise ValueError(f"{self.text}: layouts of several numbers of lanes")

    @property
    def lanes(self) -> int:
        """How many lanes execute it together; 1 on CPUs."""
        return self.c.lane_count

    def takes(self, a_dtype: str, b_dtype: str) -> bool:
        """Whether it multiplies these types."""
        return a_dtype in self.a_types and b_dtype in self.b_types
