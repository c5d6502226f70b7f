"""What a law is: an equation, when it holds, and how it is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from tvm import relax

from ...core.contract.template import Refusal
from ...core.flags import FLAGS as FLAGS
from ...ecg.properties import properties_of
from ..nonfinite import NONE, NonFinite, words
from .analysis import Node
from .graph import EGraph
from .head import Head
from .pattern import Apply, Number, Pattern, Tensor


@dataclass(frozen=True)
class Match:
    """Where a law's left side was found."""

    graph: EGraph  # the e-graph
    root: int  # class of the left side
    bound: Bindings  # what the names stand for

    def number(self, name: str) -> int:
        """Return the class that a tensor's name stands for."""
        found = self.bound[name]
        if not isinstance(found, int):
            raise TypeError(f"{name} is not the name of a tensor")
        return found

    def head(self, name: str) -> Head:
        """Return the operator that an attributes' name stands for."""
        found = self.bound[name]
        if not isinstance(found, Head):
            raise TypeError(f"{name} is not the name of an operator")
        return found

    def type(self, name: str) -> relax.TensorType:
        """Return the type of a tensor."""
        return self.graph[self.number(name)].type

    def value(self, name: str) -> np.ndarray | None:
        """Return a small constant's elements."""
        return self.graph[self.number(name)].value

    def uniform(self, name: str) -> float | None:
        """Return the value that all elements of a small constant have."""
        return self.graph.uniform(self.number(name))


class Law:
    """An equation between expressions.

    Most are an :class:`Equation`. Of other subclasses the docstring is the equation: those that
    hold under conditions (:meth:`check` tells which are missing), and those with a right side
    that no pattern can say, which :meth:`rewrite` writes.
    """

    name: str  # stable and public: users switch a law off by it
    # The left and the right side.
    before: Pattern
    after: Pattern | None = None
    both: bool = False  # whether the left side is written for the right one, too
    needs: str = ""  # the flag of :data:`FLAGS` that allows it; empty: it always holds
    # Whether it is exact modulo a power of two: then integers need no flag.
    is_modular: bool = False
    # Non-finite values of the left side where the right side may have others. Where the left side
    # is finite, the right side is the same; and so, with what is not named here, elsewhere.
    changes: NonFinite = NONE

    def check(self, match: Match) -> Refusal | None:
        """Say why the law does not hold here; None if it does."""
        return None

    def changed(self, match: Match) -> NonFinite:
        """Say of what this match may change; by its constants, for some."""
        return self.changes

    def may_change(self, match: Match) -> NonFinite:
        """Say of what this match may change; nothing of integers."""
        is_floating = "float" in str(match.graph[match.root].type.dtype)
        return self.changed(match) if is_floating else NONE

    def refusal(self, match: Match) -> Refusal | None:
        """Say why the law may not be used here; None if it may.

        It may where it holds, unless the model tells values that it changes from numbers.
        """
        refusal = self.check(match)
        if refusal is not None:
            return refusal
        told = match.graph.told(match.root)
        seen = told and self.may_change(match) & told
        if not seen:
            return None
        sentence = (
            f"The model tests for {words(seen)} here, and the law may change where they occur."
        )
        return Refusal("told_apart", sentence)

    def exempt(self, match: Match) -> bool:
        """Whether it holds here without its flag."""
        return self.is_modular and "float" not in str(match.graph[match.root].type.dtype)

    def rewrite(self, match: Match) -> int | None:
        """Add the right side; None where an operator does not take its operands."""
        if self.after is None:
            raise NotImplementedError(f"{self.name} has no right side")
        ty = match.graph[match.root].type
        if isinstance(self.after, Number):
            return match.graph.full(self.after.value, ty)
        dtype = str(ty.dtype)
        return write(self.after, match.graph, match.bound, dtype, self.name)

    def find(self, graph: EGraph, number: int) -> Iterator[Match]:
        """Yield the ways in which a class is the left side."""
        for bound in matches(self.before, number, graph, {}):
            yield Match(graph, number, bound)

    @property
    def roots(self) -> tuple[str, ...]:
        """Names of the left side's operator: no other one needs to be looked at."""
        if not isinstance(self.before, Apply):
            raise TypeError(f"the left side of {self.name} is no operator")
        return self.before.names

    def backwards(self) -> Law | None:
        """Return the law from right to left, if it is one."""
        return _Backwards(self) if self.both else None

    def without_flag(self) -> Law | None:
        """Return what is left of the law where its flag is off; None if nothing is."""
        if not self.needs:
            return self
        has_exempt = self.is_modular or type(self).exempt is not Law.exempt
        return WithoutFlag(self) if has_exempt else None

    def __repr__(self) -> str:
        return f"{self.name}: {(self.__doc__ or '').strip()}"


class Equation(Law):
    """A law that is told by its two sides, and by a condition where it has one.

    Parameters
    ----------
    name, before, after, both, needs, is_modular
        As of :class:`Law`.
    changes
        As of :class:`Law`, or a function of a match.
    condition
        The check: says of a match why the law does not hold there.
    """

    def __init__(
        self,
        name: str,
        before: Pattern,
        after: Pattern,
        condition: Callable[[Match], Refusal | None] | None = None,
        *,
        both: bool = False,
        needs: str = "",
        is_modular: bool = False,
        changes: NonFinite | Callable[[Match], NonFinite] = NONE,
    ) -> None:
        self.name, self.before, self.after = name, before, after
        self.both, self.needs, self.is_modular = both, needs, is_modular
        self._condition, self._changes = condition, changes

    def changed(self, match: Match) -> NonFinite:
        """Ask the function, where there is one."""
        changes = self._changes
        return changes if isinstance(changes, NonFinite) else changes(match)

    def check(self, match: Match) -> Refusal | None:
        """Ask the condition."""
        return None if self._condition is None else self._condition(match)

    def __repr__(self) -> str:
        return f"{self.name}: {self.before} = {self.after}."


class _Backwards(Law):
    def __init__(self, law: Law) -> None:
        if law.after is None:
            raise TypeError(f"{law.name} has no right side")
        self.name, self.needs, self.is_modular = law.name, law.needs, law.is_modular
        self.before, self.after = law.after, law.before
        self.check, self.exempt = law.check, law.exempt  # type: ignore[method-assign]
        self.changed = law.changed  # type: ignore[method-assign]


class WithoutFlag(Law):
    """What is left of a law that needs a flag, where the flag is off.

    Parameters
    ----------
    law
        Of which some matches are exempt: those on integers, for many.
    """

    def __init__(self, law: Law) -> None:
        self.name, self.before, self.after, self.both = law.name, law.before, law.after, law.both
        self._law, self._flag = law, law.needs
        self.rewrite, self.find = law.rewrite, law.find  # type: ignore[method-assign]
        self.changed = law.changed  # type: ignore[method-assign]

    def check(self, match: Match) -> Refusal | None:
        """Refuse what is not exempt."""
        if not self._law.exempt(match):
            return Refusal("needs_flag", f"It is allowed here by --allow {self._flag} only.")
        return self._law.check(match)

    def backwards(self) -> Law | None:
        """Return the law from right to left, without the flag too."""
        found = self._law.backwards()
        return None if found is None else WithoutFlag(found)


# Patterns in an e-graph: find what their names stand for, and add what they say.
#: What the names of a pattern stand for: classes, and heads of operators with attributes.
Bindings: TypeAlias = Mapping[str, "int | Head"]


def matches(pattern: Pattern, number: int, graph: EGraph, bound: Bindings) -> Iterator[Bindings]:
    """Find what the names of a pattern stand for in a class.

    Parameters
    ----------
    bound
        What names stand for already.
    """
    if isinstance(pattern, Tensor):
        known = bound.get(pattern.name)
        if known is None:
            if not pattern.is_constant or graph[number].is_constant:
                yield {**bound, pattern.name: graph.find(number)}
        elif known == graph.find(number):
            yield bound
    elif isinstance(pattern, Number):
        if graph.uniform(number) == pattern.value:
            yield bound
    elif isinstance(pattern, Apply):
        names = pattern.names
        for node in tuple(graph[number].nodes):
            if node.head.name in names:
                yield from _node_matches(pattern, node, graph, bound)


def _node_matches(pattern: Apply, node: Node, graph: EGraph, bound: Bindings) -> Iterator[Bindings]:
    if len(pattern.operands) != len(node.operands):
        return
    if pattern.attrs:
        known = bound.get(pattern.attrs)
        if known is not None and known is not node.head:
            return
        bound = {**bound, pattern.attrs: node.head}
    orders = [node.operands]
    if properties_of(node.head.name).commutative and len(node.operands) == 2:
        first, second = node.operands
        if first != second and pattern.operands[0] != pattern.operands[1]:
            orders.append((second, first))
    for order in orders:
        yield from _all_match(pattern.operands, order, graph, bound)


def _all_match(
    parts: Sequence[Pattern], operands: Sequence[int], graph: EGraph, bound: Bindings
) -> Iterator[Bindings]:
    """Match operands one after the other; lazily, as many matches as are asked for."""
    if not parts:
        yield bound
        return
    for more in matches(parts[0], operands[0], graph, bound):
        yield from _all_match(parts[1:], operands[1:], graph, more)


def write(pattern: Pattern, graph: EGraph, bound: Bindings, dtype: str, law: str) -> int | None:
    """Add what a pattern stands for.

    Parameters
    ----------
    pattern
        Over names that are bound.

    Returns
    -------
    int or None
        The class; None where an operator does not take its operands.
    """
    if isinstance(pattern, Tensor):
        known = bound[pattern.name]
        return known if isinstance(known, int) else None
    if isinstance(pattern, Number):
        return graph.constant(pattern.value, dtype)
    if not isinstance(pattern, Apply):
        raise TypeError(f"{pattern!r} is not a pattern")
    operands = []
    for part in pattern.operands:
        operand = write(part, graph, bound, dtype, law)
        if operand is None:
            return None
        operands.append(operand)
    head = bound.get(pattern.attrs)
    if isinstance(head, Head) and head.name in pattern.names:
        return graph.add(head, operands, law)
    return graph.call(_operator(pattern.name), *operands, law=law)


def _operator(name: str) -> Callable[..., relax.Call]:
    """Find the function of ``relax.op`` that writes an operator."""
    found = relax.op
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found
