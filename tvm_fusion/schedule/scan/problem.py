"""The prefix-sum problem: a running sum along one axis of a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir

from ..math.half_math import HALF_TYPES


@dataclass(frozen=True)
class PrefixSumProblem:
    """A running sum along one axis."""

    # Buffers of the same shape.
    source: ir.Var
    target: ir.Var
    is_exclusive: bool  # whether an element is no part of its own sum
    axis: int  # the axis; the last one on GPUs

    @property
    def rows(self) -> Sequence[ir.Expr]:
        """Extents before the last."""
        return list(self.source.shape)[:-1]

    @property
    def length(self) -> ir.Expr:
        """Elements of a row."""
        return self.source.shape[-1]

    @property
    def dtype(self) -> str:
        """Type of the sums."""
        dtype = str(self.target.dtype)
        return "float32" if dtype in HALF_TYPES else dtype
