"""What the generator, the interpreter and the Relax module know of one operator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operator:
    """One Relax operator."""

    name: str  # Relax's name without ``relax.``
    # From Relax expressions and the attributes as keywords to a Relax call.
    build: Callable[..., Any]
    # The same over arrays of float64, int64 or bool; several results come as a list.
    reference: Callable[..., Any]
    # Distance of each element from the place where the result jumps, from the same arguments.
    distance: Callable[..., Any] | None = None
    exact: bool = False  # whether it moves, selects or counts without any rounding
    noise: float = 1  # rounding errors of one result, in those of a single float32 operation
    # Error of one result however small it is, in float32 roundings of 1: of an intermediate result
    # about 1, of which little is left.
    absolute: float = 0
    # Whether a result is a sum of as many terms as it takes elements of the first input.
    sums: bool = False
    # The reference with its intermediate results moved: their errors are no errors of the arguments
    # or the result. A random generator comes before the arguments.
    perturbed: Callable[..., Any] | None = None
