"""Dimensions of generated graphs: integers, or ``factor * (product of symbols) + offset``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

Env = Mapping[str, int]


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension."""

    factor: int
    symbols: tuple[str, ...]
    offset: int = 0

    def value(self, symbols: Mapping[str, Any]) -> Any:
        """Put integers or TVM variables in place of the symbols."""
        product = self.factor
        for name in self.symbols:
            product = product * symbols[name]
        return product + self.offset if self.offset else product

    def __str__(self) -> str:
        text = "*".join(self.symbols if self.factor == 1 else (str(self.factor), *self.symbols))
        return f"{text}+{self.offset}" if self.offset else text

    __repr__ = __str__


Extent = int | Dim


def resolve(value: Any, symbols: Mapping[str, Any]) -> Any:
    """Replace every Dim inside of an attribute by its value."""
    if isinstance(value, Dim):
        return value.value(symbols)
    if isinstance(value, (list, tuple)):
        return type(value)(resolve(item, symbols) for item in value)
    return value


def fit(values: Sequence[int], envs: Sequence[Env]) -> Extent | None:
    """Find the dimension that has these values at these instantiations; None if there is none."""
    if len(set(values)) == 1:
        return values[0]
    names = sorted(envs[0])
    for count in range(1, len(names) + 1):
        for chosen in combinations(names, count):
            points = [math.prod(env[name] for name in chosen) for env in envs]
            factor, rest = divmod(values[1] - values[0], (points[1] - points[0]) or values[1] + 1)
            offset = values[0] - factor * points[0]
            fits = all(factor * p + offset == v for p, v in zip(points, values, strict=True))
            if rest == 0 and factor > 0 and fits:
                return Dim(factor, chosen, offset)
    return None


def fit_shape(shapes: Sequence[Sequence[int]], envs: Sequence[Env]) -> tuple[Extent, ...] | None:
    """Find the shape that takes these forms at these instantiations."""
    if len({len(shape) for shape in shapes}) != 1:
        return None
    dims = [fit(values, envs) for values in zip(*shapes, strict=True)]
    return None if any(dim is None for dim in dims) else tuple(d for d in dims if d is not None)


def combine(function: Any, shape: Sequence[Extent], envs: Sequence[Env]) -> Extent | None:
    """Apply an integer function of a shape, such as ``math.prod``, to symbolic dimensions."""
    return fit([function(resolve(tuple(shape), env)) for env in envs], envs)
