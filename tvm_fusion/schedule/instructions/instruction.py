"""A row of the table of matrix instructions."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

from .layout import Layout


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction, ``D = A * B + C``."""

    # As :class:`tvm_fusion.device.model.MatrixInstruction` names it; ``dot`` of a CPU's vectors.
    family: str
    # How the target's compiler knows it: PTX's instruction, or LLVM's intrinsic. ``{a}``, ``{b}``
    # and ``{n}`` stand for what a use chooses; the emitter next to the rows fills them in.
    name: str
    # A is m x k, B is k x n; the largest n of wgmma.
    m: int
    n: int
    k: int
    # Types of A and of B in memory, in any combination.
    a_types: tuple[str, ...]
    b_types: tuple[str, ...]
    kind: str  # of the types, as :class:`~tvm_fusion.device.model.MatrixInstruction` has it
    sums: str  # type of C and D
    # Where A, and C and D, lie in registers.
    a: Layout
    b: Layout | None  # where B lies; None where the instruction reads it from shared memory alone
    c: Layout
    # Which of ``a`` and ``b`` it can read from shared memory, as a matrix descriptor tells it.
    from_shared: tuple[str, ...] = ()
    # Whether such an operand may be contiguous along M or N, too; otherwise along K alone.
    is_mn_major: bool = False

    def __post_init__(self) -> None:
        """Check that the layouts are those of its matrices, and of as many lanes."""
        shapes = [self.a.shape, self.c.shape, self.b.shape if self.b else (self.k, self.n)]
        if shapes != [(self.m, self.k), (self.m, self.n), (self.k, self.n)]:
            raise ValueError(f"{self.name}: layouts of {shapes}")
        if len({x.lane_count for x in (self.a, self.b, self.c) if x is not None}) != 1:
            raise ValueError(f"{self.name}: layouts of several numbers of lanes")
        if self.b is None and "b" not in self.from_shared:
            raise ValueError(f"{self.name}: B lies nowhere")

    @property
    def lanes(self) -> int:
        """How many lanes execute it together; 1 on CPUs."""
        return self.c.lane_count

    @cached_property
    def k_per_lane(self) -> int:
        """How many elements of one row of A, and of one column of B, a lane holds."""
        return prod(digit.extent for digit in self.a.registers if not digit.row)

    def takes(self, a_dtype: str, b_dtype: str) -> bool:
        """Whether it multiplies these types."""
        return a_dtype in self.a_types and b_dtype in self.b_types
