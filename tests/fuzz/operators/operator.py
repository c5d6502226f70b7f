"""What the generator, the interpreter and the Relax module know of one operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operator:
    """One Relax operator.

    Attributes
    ----------
    name
        Relax's name without ``relax.``.
    build
        From Relax expressions and the attributes as keywords to a Relax call.
    reference
        The same over arrays of float64, int64 or bool; several results come as a list.
    distance
        Distance of each element from the place where the result jumps, from the same arguments.
    exact
        Whether it moves, selects or counts without any rounding.
    noise
        Rounding errors of one result, in those of a single float32 operation.
    absolute
        Error of one result however small it is, in float32 roundings of 1: of an intermediate
        result about 1, of which little is left.
    sums
        Whether a result is a sum of as many terms as it takes elements of the first input.
    perturbed
        The reference with its intermediate results moved: their errors are no errors of the
        arguments or the result. A random generator comes before the arguments.
    """

    name: str
    build: Callable[..., Any]
    reference: Callable[..., Any]
    distance: Callable[..., Any] | None = None
    exact: bool = False
    noise: float = 1
    absolute: float = 0
    sums: bool = False
    perturbed: Callable[..., Any] | None = None
