"""Rows of vector instructions: types of the result and of the sources, and a function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operation:
    """What an instruction does to each lane.

    Attributes
    ----------
    result
        Type of the destination; ``mask`` for a bit a lane.
    sources
        Types; ``mask`` for a bit a lane of scalar registers, ``dst`` in front of a type for the
        destination's old value.
    function
        Of arrays.
    undefined
        ``(values, undefined bits) -> undefined bits``; None: any undefined bit spoils the result.
    """

    result: str
    sources: tuple[str, ...]
    function: Callable[..., Any]
    undefined: Callable[..., Any] | None = None


#: Instructions with one result.
VECTOR: dict[str, Operation] = {}
#: Instructions with a second result, a bit a lane.
PAIRED: dict[str, Operation] = {}


def row(names: str, result: str, sources: str, function: Any, undefined: Any = None) -> None:
    """Add instructions to :data:`VECTOR`, named without ``v_``."""
    for name in names.split():
        VECTOR[f"v_{name}"] = Operation(result, tuple(sources.split()), function, undefined)
