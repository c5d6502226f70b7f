"""Patterns of expressions, written as the equations that laws are.

``a * c + b * c`` is a pattern over the tensors ``a``, ``b`` and ``c``. Operands of commutative
operators match in either order, so no law is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias


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
    """An operator of other patterns."""

    name: str  # Relax name
    operands: tuple[Pattern, ...]  # tensors
    # Names the operator with its attributes; the same name stands for the same attributes. Empty:
    # the operator has none.
    attrs: str = ""
    # More Relax names: any of these operators, the same one wherever ``attrs`` stands.
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
