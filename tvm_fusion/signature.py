"""Names, shapes and dtypes of a model's functions, in plain Python.

Written by the frontend, kept in the artifact's manifest, checked at every call. Imports no TVM, so
that an artifact can be loaded and checked without the compiler.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import whole_number


@dataclass(frozen=True)
class TensorSpec:
    """One input or output."""

    name: str  # the name in the model file
    # Extents; a string is the name of a symbolic dimension or an expression over such names.
    shape: tuple[int | str, ...]
    dtype: str  # a numpy or ml_dtypes name: ``float32``, ``int64``, ``bfloat16``, ``bool``..
    # The dtype in which the code takes or returns it, one element of each for one of the other;
    # empty where that is ``dtype``.
    storage: str = ""


@dataclass(frozen=True)
class EqualExtents:
    """Two extents that have to be equal, which the ranges of dimensions leave open."""

    # Expressions over the symbolic dimensions.
    one: str
    other: str
    where: str  # the operator that joins them


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one function, in call order, and what a call has to fulfil besides."""

    # Flat.
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    equal: tuple[EqualExtents, ...] = ()  # what the ranges of dimensions leave open
    # How a PyTorch module is called, with nested arguments and results: see
    # :mod:`tvm_fusion.deploy.runtime.artifact.call_tree`.
    call: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class DimRange:
    """The extents that a symbolic dimension may take.

    Attributes
    ----------
    low, high : int
        The least and the largest, both included.
    step : int
        Extents are multiples of it, and so are ``low`` and ``high``.
    """

    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            value = whole_number(f"{name} of a DimRange", getattr(self, name))
            object.__setattr__(self, name, value)

    def __contains__(self, extent: object) -> bool:
        """Tell whether the dimension may have an extent."""
        return (
            isinstance(extent, int) and self.low <= extent <= self.high and extent % self.step == 0
        )

    @property
    def text(self) -> str:
        """The range as ``--dim`` takes it: ``32..1024:32``."""
        return f"{self.low}..{self.high}" + (f":{self.step}" if self.step > 1 else "")

    @property
    def sentence(self) -> str:
        """The range in words: ``32 to 1024, a multiple of 32``."""
        steps = f", a multiple of {self.step}" if self.step > 1 else ""
        return f"{self.low} to {self.high}{steps}"

    def with_extent(self, extent: int) -> "DimRange":
        """Return the range that has this extent as well."""
        step = math.gcd(self.step, extent)
        return DimRange(min(extent, self.low), max(extent, self.high), step)

    @property
    def least(self) -> int:
        """The smallest extent that is not empty, if there is one."""
        return min(max(self.step, self.low), self.high)
