"""What the ranges of symbolic dimensions prove about expressions over them."""

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, tirx
from tvm.ir.prim import expr_deep_equal

from ...signature import DimRange
from ..dimensions.extents import from_tir
from ..tensor_types import static

# Assignments of extents at which a formula is compared with the arithmetic it stands for.
_MOST_SAMPLES = 1 << 16
_LARGEST_EXTENT = 1 << 40
_COMPARISONS: dict[type, Any] = {
    tirx.EQ: operator.eq,
    tirx.NE: operator.ne,
    tirx.LT: operator.lt,
    tirx.LE: operator.le,
    tirx.GT: operator.gt,
    tirx.GE: operator.ge,
}


class Facts:
    """Ranges of symbolic dimensions, and proofs by them.

    Parameters
    ----------
    ranges : mapping of tvm.tirx.Var to DimRange
        Of each variable; extents that no range is known of are at least 0.
    """

    def __init__(self, ranges: Mapping[Any, DimRange]):
        self._ranges = dict(ranges)
        self._analyzer = tvm.sym.Analyzer()
        for var, bounds in ranges.items():
            self._analyzer.bind(var, ir.Range(bounds.low, bounds.high + 1))
        self._bound = {var.name for var in ranges}

    def simplify(self, value: Any) -> Any:
        """Shorten an expression; one without variables is an int, or a bool."""
        if not isinstance(value, ir.Expr):
            return value
        self._learn(value)
        short = self._analyzer.simplify(value)
        known = static(short)
        if known is None:
            return short
        return bool(known) if str(short.ty.dtype) == "bool" else known

    def decide(self, condition: Any) -> bool | None:
        """Tell whether a condition holds for all extents, for none (False), or neither (None)."""
        if isinstance(condition, bool):
            return condition
        self._learn(condition)
        if self._analyzer.can_prove(condition):
            return True
        if self._analyzer.can_prove(tirx.Not(condition)):
            return False
        return self._tried(condition)

    def _tried(self, condition: Any) -> bool | None:
        """Decide a comparison by all extents, where they are few: ``(n + 1) // 2 <= n``."""
        compare = _COMPARISONS.get(type(condition))
        if compare is None or not self.knows(condition):
            return None
        bounds = [self._ranges[var] for var in variables_of(condition)]
        if math.prod(r.high - r.low + 1 for r in bounds) > _MOST_SAMPLES:
            return None
        extents = self.samples(variables_of(condition))
        assert extents is not None
        holds = compare(at(condition.a, extents), at(condition.b, extents))
        if np.all(holds):
            return True
        return None if np.any(holds) else False

    def proves(self, condition: Any) -> bool:
        """Tell whether a condition holds for all extents."""
        return self.decide(condition) is True

    def equal(self, one: Any, other: Any) -> bool:
        """Tell whether two extents are equal for all values of the dimensions."""
        if not isinstance(one, ir.Expr) and not isinstance(other, ir.Expr):
            return bool(one == other)
        one, other = as_expr(one), as_expr(other)
        return bool(expr_deep_equal(one, other)) or self.proves(one == other)

    def knows(self, *values: Any) -> bool:
        """Tell whether expressions are over dimensions of known ranges alone."""
        return all(var in self._ranges for value in values for var in variables_of(value))

    def bounds(self, value: Any) -> tuple[int, int]:
        """Return the least and the largest value that an expression may have."""
        if not isinstance(value, ir.Expr):
            return int(value), int(value)
        self._learn(value)
        found = self._analyzer.const_int_bound(value)
        return int(found.min_value), int(found.max_value)

    def larger(self, one: Any, other: Any) -> Any:
        """Return the larger of two extents, one of them where that is proved."""
        return self._extreme(one, other, tirx.max)

    def smaller(self, one: Any, other: Any) -> Any:
        """Return the smaller of two extents, one of them where that is proved."""
        return self._extreme(other, one, tirx.min)

    def _extreme(self, one: Any, other: Any, function: Any) -> Any:
        a, b = as_expr(one), as_expr(other)
        if self.proves(a >= b):
            return one if function is tirx.max else other
        if self.proves(b >= a):
            return other if function is tirx.max else one
        return self.simplify(function(a, b))

    def quotient(self, over: Sequence[Any], under: Sequence[Any]) -> Any:
        """Divide a product of extents by another, equal factors first; rounded down."""
        left, rest = list(over), []
        for factor in under:
            twin = next((i for i, x in enumerate(left) if self.equal(x, factor)), None)
            if twin is None:
                rest.append(factor)
            else:
                del left[twin]
        total = self.simplify(math.prod(left))
        divisor = self.simplify(math.prod(rest))
        if isinstance(divisor, int) and divisor <= 1:
            return total
        return self.simplify(tirx.floordiv(as_expr(total), as_expr(divisor)))

    def samples(self, variables: Iterable[Any]) -> dict[str, np.ndarray] | None:
        """Return extents to try, by name: all of them where they are few, ends and draws otherwise.

        Returns
        -------
        dict of str to numpy.ndarray or None
            None where a variable has no range.
        """
        names = {var.name: var for var in variables}
        ranges = [self._ranges.get(var) for var in names.values()]
        if any(found is None for found in ranges):
            return None
        bounds = [(r.low, r.high) for r in ranges if r is not None]
        if np.prod([high - low + 1.0 for low, high in bounds]) <= _MOST_SAMPLES:
            grids = np.meshgrid(*(np.arange(a, b + 1) for a, b in bounds), indexing="ij")
            return {n: grid.reshape(-1) for n, grid in zip(names, grids, strict=True)}
        ends = np.array(list(itertools.product(*bounds)))
        drawn = np.random.default_rng(0).integers(
            [a for a, _ in bounds], [b + 1 for _, b in bounds], (_MOST_SAMPLES, len(bounds))
        )
        columns = np.concatenate([ends, drawn])
        return {n: columns[:, i] for i, n in enumerate(names)}

    def _learn(self, value: Any) -> None:
        """Note of variables that came up since, which are extents of tensors, that they are."""
        for var in variables_of(value):
            if var.name not in self._bound and var not in self._ranges:
                limits = (tirx.IntImm("int64", limit) for limit in (0, _LARGEST_EXTENT))
                self._analyzer.bind(var, ir.Range.from_min_extent(*limits), True)


def as_expr(value: Any) -> Any:
    """Turn an int into an expression."""
    return value if isinstance(value, ir.Expr) else tirx.IntImm("int64", int(value))


def variables_of(value: Any) -> list[Any]:
    """List the variables of an expression, none of a number."""
    return list(tirx.analysis.undefined_vars(value)) if isinstance(value, ir.Expr) else []


def at(value: Any, extents: Mapping[str, np.ndarray]) -> Any:
    """Evaluate an expression in 64-bit integers at each of many extents."""
    text = from_tir(value) if isinstance(value, ir.Expr) else int(value)
    if isinstance(text, int):
        return np.int64(text)
    functions = {"max": np.maximum, "min": np.minimum, "__builtins__": {}}
    return eval(text, functions, dict(extents))  # arithmetic that from_tir wrote
