"""What a law is: an equation, when it holds, and how it is applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ..schedule.template import Refusal
from .egraph import EGraph
from .flags import FLAGS as FLAGS
from .head import Head
from .pattern import Apply, Bindings, Pattern, matches, write


@dataclass(frozen=True)
class Match:
    """Where a law's left side was found.

    Attributes
    ----------
    graph : EGraph
        The e-graph.
    root : int
        Class of the left side.
    bound : Mapping
        What the names stand for.
    """

    graph: EGraph
    root: int
    bound: Bindings

    def number(self, name: str) -> int:
        """Give the class that a tensor's name stands for."""
        found = self.bound[name]
        if not isinstance(found, int):
            raise TypeError(f"{name} names no tensor")
        return found

    def head(self, name: str) -> Head:
        """Give the operator that an attributes' name stands for."""
        found = self.bound[name]
        if not isinstance(found, Head):
            raise TypeError(f"{name} names no operator")
        return found

    def type(self, name: str) -> relax.TensorType:
        """Give the type of a tensor."""
        return self.graph[self.number(name)].type

    def value(self, name: str) -> np.ndarray | None:
        """Give a small constant's elements."""
        return self.graph[self.number(name)].value

    def uniform(self, name: str) -> float | None:
        """Give the number that all elements of a small constant are."""
        return self.graph.uniform(self.number(name))


class Law:
    """An equation between expressions.

    Subclasses give both sides; the docstring is the equation. Of a law that holds in one direction
    under conditions :meth:`check` tells which are missing; what no pattern can say is written by
    :meth:`rewrite`.

    Attributes
    ----------
    name : str
        Stable and public: users switch a law off by it.
    before, after : Pattern
        The left and the right side.
    both : bool
        Whether the left side is written for the right one, too.
    needs : str
        The flag of :data:`FLAGS` that allows it; empty: it always holds.
    """

    name: str
    before: Pattern
    after: Pattern | None = None
    both: bool = False
    needs: str = ""

    def check(self, match: Match) -> Refusal | None:
        """Say why the law does not hold here; None if it does."""
        return None

    def rewrite(self, match: Match) -> int | None:
        """Add the right side; None where an operator does not take its operands."""
        if self.after is None:
            raise NotImplementedError(f"{self.name} has no right side")
        dtype = str(match.graph[match.root].type.dtype)
        return write(self.after, match.graph, match.bound, dtype, self.name)

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield the ways in which a class is the left side."""
        for bound in matches(self.before, number, graph, {}):
            yield Match(graph, number, bound)

    @property
    def root(self) -> str:
        """Name of the left side's operator: no other one needs to be looked at."""
        if not isinstance(self.before, Apply):
            raise TypeError(f"the left side of {self.name} is no operator")
        return self.before.name

    def backwards(self) -> Law | None:
        """Give the law from right to left, if it is one."""
        return _Backwards(self) if self.both else None

    def __repr__(self) -> str:
        return f"{self.name}: {(self.__doc__ or '').strip()}"


class _Backwards(Law):
    def __init__(self, law: Law) -> None:
        if law.after is None:
            raise TypeError(f"{law.name} has no right side")
        self.name, self.needs = law.name, law.needs
        self.before, self.after = law.after, law.before
        self.check = law.check  # type: ignore[method-assign]
