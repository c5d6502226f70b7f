"""Types of a loop's states, where extents may change from trip to trip.

A trip is converted again and again, with a symbol for each extent that it returned changed, until
it returns the types that it was given. Dtypes and ranks must stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax, sym, tirx

from ..registry import Unsupported
from .lifted import extents_of, identifier


@dataclass
class StateTypes:
    """Types of states, with symbols for the extents that change from trip to trip."""

    names: Sequence[str]
    types: list[Any]
    changing: list[Any] = field(default_factory=list)

    def join(self, found: Sequence[Any]) -> bool:
        """Widen by what a trip returns; returns whether nothing changed."""
        same = True
        for i, (name, old, new) in enumerate(zip(self.names, self.types, found, strict=True)):
            if dtype := _other_dtype(old, new):
                raise Unsupported(
                    f"whose state {name} is {dtype[0]} before a trip and {dtype[1]} after it",
                    "cast it in the body",
                )
            if old.ndim != new.ndim:
                raise Unsupported(f"whose state {name} changes its rank", "keep its rank")
            after = extents_of(new) or [None] * old.ndim
            extents = []
            for axis, (a, b) in enumerate(zip(extents_of(old), after, strict=True)):
                if not self.is_changing(a) and (b is None or not _equal(a, b)):
                    a = tirx.Var(f"{identifier(name)}_{axis}", "int64")
                    self.changing.append(a)
                    same = False
                extents.append(a)
            self.types[i] = relax.TensorType(extents, old.dtype)
        return same

    def is_changing(self, extent: Any) -> bool:
        """Tell whether an extent is one of those symbols."""
        return any(symbol.same_as(extent) for symbol in self.changing)

    def returned(self) -> list[Any]:
        """Return the types of the results of the function over all trips."""
        return [
            relax.TensorType(dtype=ty.dtype, ndim=ty.ndim)
            if any(map(self.is_changing, extents_of(ty)))
            else ty
            for ty in self.types
        ]


def _other_dtype(old: Any, new: Any) -> tuple[str, str] | None:
    pair = str(old.dtype.dtype), str(new.dtype.dtype)
    return pair if pair[0] != pair[1] else None


def _equal(a: Any, b: Any) -> bool:
    return bool(sym.Analyzer().can_prove_equal(a, b))
