"""Patterns of expressions, written as the equations that laws are.

``a * c + b * c`` is a pattern over the tensors ``a``, ``b`` and ``c``. Operands of commutative
operators match in either order, so no law is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import relax

from ..ecg.properties import properties_of
from .egraph import EGraph, Node
from .head import Head

#: What the names of a pattern stand for: classes, and heads of operators with attributes.
Bindings: TypeAlias = Mapping[str, "int | Head"]


class Pattern:
    """An expression with blanks."""

    def __add__(self, other: Operand) -> Pattern:
        return apply("relax.add", self, other)

    def __radd__(self, other: Operand) -> Pattern:
        return apply("relax.add", other, self)

    def __sub__(self, other: Operand) -> Pattern:
        return apply("relax.subtract", self, other)

    def __rsub__(self, other: Operand) -> Pattern:
        return apply("relax.subtract", other, self)

    def __mul__(self, other: Operand) -> Pattern:
        return apply("relax.multiply", self, other)

    def __rmul__(self, other: Operand) -> Pattern:
        return apply("relax.multiply", other, self)

    def __truediv__(self, other: Operand) -> Pattern:
        return apply("relax.divide", self, other)

    def __rtruediv__(self, other: Operand) -> Pattern:
        return apply("relax.divide", other, self)

    def __matmul__(self, other: Operand) -> Pattern:
        return apply("relax.matmul", self, other, attrs="@")

    def __neg__(self) -> Pattern:
        return apply("relax.negative", self)


Operand: TypeAlias = "Pattern | float"


@dataclass(frozen=True)
class Tensor(Pattern):
    """Any tensor; the same one wherever its name stands."""

    name: str
    is_constant: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Number(Pattern):
    """A constant, all elements of which are one number."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Apply(Pattern):
    """An operator of other patterns.

    Attributes
    ----------
    name : str
        Relax name.
    operands : tuple of Pattern
        Tensors.
    attrs : str
        Names the operator with its attributes; the same name stands for the same attributes. Empty:
        the operator has none.
    choices : tuple of str
        More Relax names: any of these operators, the same one wherever ``attrs`` stands.
    """

    name: str
    operands: tuple[Pattern, ...]
    attrs: str = ""
    choices: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Relax names of operators that it stands for."""
        return (self.name, *self.choices)

    def __str__(self) -> str:
        if self.choices:
            return f"{self.attrs}({', '.join(map(str, self.operands))})"
        symbol = _SYMBOLS.get(self.name)
        if symbol is None:
            named = [self.attrs] if self.attrs else []
            return f"{_short(self.name)}({', '.join([*map(str, self.operands), *named])})"
        if len(self.operands) == 1:
            return f"{symbol}{self._inner(self.operands[0])}"
        left, right = self.operands
        return f"{self._inner(left)} {symbol} {self._inner(right, is_right=True)}"

    def _inner(self, operand: Pattern, is_right: bool = False) -> str:
        own = _precedence(self)
        other = _precedence(operand)
        needs = other < own or (is_right and other == own)
        return f"({operand})" if needs else str(operand)


_SYMBOLS = {
    "relax.add": "+",
    "relax.subtract": "-",
    "relax.multiply": "*",
    "relax.divide": "/",
    "relax.matmul": "@",
    "relax.negative": "-",
}
_PRECEDENCE = {
    "relax.add": 1,
    "relax.subtract": 1,
    "relax.multiply": 2,
    "relax.divide": 2,
    "relax.matmul": 2,
    "relax.negative": 3,
}


def _precedence(pattern: Pattern) -> int:
    if not isinstance(pattern, Apply) or pattern.choices:
        return 9
    return _PRECEDENCE.get(pattern.name, 9)


def _short(name: str) -> str:
    return name.removeprefix("relax.").removeprefix("nn.")


def tensors(names: str) -> tuple[Tensor, ...]:
    """Name tensors, separated by blanks."""
    return tuple(Tensor(name) for name in names.split())


def number(value: float) -> Number:
    """Write a number that stands alone."""
    return Number(float(value))


def constants(names: str) -> tuple[Tensor, ...]:
    """Name tensors that are known at compile time."""
    return tuple(Tensor(name, is_constant=True) for name in names.split())


def apply(name: str, *operands: Operand, attrs: str = "") -> Apply:
    """Write an operator of patterns and numbers."""
    made = (o if isinstance(o, Pattern) else Number(o) for o in operands)
    return Apply(name, tuple(made), attrs)


def function(name: str, attrs: str = "") -> Callable[..., Pattern]:
    """Return a function that writes an operator; ``attrs`` as in :class:`Apply`."""
    return lambda *operands: apply(name, *operands, attrs=attrs)


def one_of(attrs: str, *names: str) -> Callable[..., Pattern]:
    """Return a function that writes any of some operators, the same one wherever ``attrs`` is."""
    first, *others = (f"relax.{name}" for name in names)
    return lambda *operands: replace(apply(first, *operands, attrs=attrs), choices=tuple(others))


def operators_in(pattern: Pattern) -> Iterator[str]:
    """Yield the names of a pattern's operators."""
    if isinstance(pattern, Apply):
        yield from pattern.names
        for operand in pattern.operands:
            yield from operators_in(operand)


# Matching ----------------------------------------------------------------------------------------


def matches(pattern: Pattern, number: int, graph: EGraph, bound: Bindings) -> Iterator[Bindings]:
    """Find what the names of a pattern stand for in a class.

    Parameters
    ----------
    pattern : Pattern
        What to find.
    number : int
        Of the class.
    graph : EGraph
        It is in.
    bound : Mapping
        What names stand for already.

    Yields
    ------
    Mapping
        With all names of the pattern.
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


# Writing -----------------------------------------------------------------------------------------


def write(pattern: Pattern, graph: EGraph, bound: Bindings, dtype: str, law: str) -> int | None:
    """Add what a pattern stands for.

    Parameters
    ----------
    pattern : Pattern
        Over names that are bound.
    graph : EGraph
        Where.
    bound : Mapping
        What names stand for.
    dtype : str
        Of numbers.
    law : str
        Who asks.

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
        raise TypeError(f"{pattern!r} is no pattern")
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
