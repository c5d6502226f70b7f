"""Masks of scores that hide keys by their position, as bounds of the visible keys.

Comparisons that are linear in the position of the key become bounds; where they all hold, a score
is what is left. A limit may be read from memory, by the row or by the batch: the first and the last
key of a packed sequence, the length of a padded one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from ...._tvm.ir.structural import structural_map
from ....core.tir.expressions import call_name, choice, int64, loads, variables
from ....core.tir.loops import constant, find, index, simplified, substitute
from ....program.domain import Domain
from .pattern import Pattern

HIDDEN = -1e30  # finite scores of at most so much are masks, too


@dataclass(frozen=True)
class Bound:
    """``key <= limit``, or ``key >= limit``."""

    limit: ir.Expr  # over the query, and axes that a block does not run along
    is_upper: bool  # which of both
    slope: int  # what a row adds to the limit: -1, 0 or 1
    # Rows after which the limits begin anew: those of one of several heads that share keys.
    period: int | ir.Expr | None = None
    is_loaded: bool = False  # whether the limit of a row is read from memory: rows are in no order

    def extreme(
        self,
        query: ir.Var | None,
        rows: tuple[ir.Expr, ir.Expr],
        where: Mapping[ir.Var, ir.Expr],
        largest: bool,
        block: int = 1,
    ) -> ir.Expr:
        """Return the largest or the smallest limit among neighbouring rows.

        Parameters
        ----------
        rows
            The first and the last one.
        where
            The position along other axes.
        block
            The rows are of one block of so many, the first block being the first rows; 1 for
            any rows.
        """
        takes_last = (self.slope > 0) == largest
        row = rows[1 if takes_last else 0]
        if self.period is not None and (block == 1 or (constant(self.period) or 1) % block):
            begun = [tirx.floordiv(x, index(self.period)) for x in rows]
            extreme = index(self.period - 1) if takes_last else index(0)
            row = simplified(tirx.Select(tirx.EQ(*begun), row, extreme))
        return substitute(self.limit, {**where, **({} if query is None else {query: row})})


class MaskReader:
    """Replace choices that positions decide by their visible value.

    Parameters
    ----------
    takes_loads
        Whether limits may be read from memory.
    """

    def __init__(self, pattern: Pattern, takes_loads: bool = False) -> None:
        self._takes_loads = takes_loads
        self._key = pattern.key.var
        self._query = None if pattern.query is None else pattern.query.var
        self._domain = Domain([a for a in (pattern.key, pattern.query) if a is not None])
        self.bounds: list[Bound] = []
        self.hidden: list[float] = []
        self.hides = True  # whether finite masks are what a hidden score is, or are added to it
        self.opaque = False  # whether a constant as low as a mask is left

    def strip(self, expr: ir.Expr, is_sum: bool = True) -> ir.Expr:
        """Return the expression where the conditions that are taken into account hold."""
        chosen = choice(expr)
        if chosen is not None:
            return self._choice(expr, *chosen, is_sum=is_sum)
        if isinstance(expr, tirx.Add):
            a, b = self.strip(expr.a, is_sum), self.strip(expr.b, is_sum)
            if _is_zero(b) or _is_zero(a):
                return a if _is_zero(b) else b
            return a + b
        if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.FloatImm):
            return tirx.Mul(self.strip(expr.a, False), expr.b)
        low = number(expr)
        self.opaque |= low is not None and low <= HIDDEN
        return expr

    def _choice(
        self, expr: ir.Expr, condition: ir.Expr, then: ir.Expr, otherwise: ir.Expr, is_sum: bool
    ) -> ir.Expr:
        for seen, other, negated in ((then, otherwise, False), (otherwise, then, True)):
            value = number(other)
            if value is None or value > HIDDEN:
                continue
            parts = _conjuncts(condition, negated)
            found = [self._bound(part) for part in parts]
            bounds = [b for b in found if b is not None]
            if len(bounds) != len(parts):
                self.opaque |= value > -math.inf
                return expr
            self.bounds += bounds
            self.hidden.append(value)
            self.hides &= is_sum
            return self.strip(seen, is_sum)
        return expr

    def _bound(self, condition: ir.Expr) -> Bound | None:
        """Read a comparison that is linear in the position of the key."""
        condition = self._domain.positions(condition)
        if self._takes_loads:
            condition = _counted(condition)
        flipped = {tirx.GE: tirx.LE, tirx.GT: tirx.LT}
        a, b, kind = getattr(condition, "a", None), getattr(condition, "b", None), type(condition)
        if kind in flipped:
            a, b, kind = b, a, flipped[kind]
        if kind not in (tirx.LE, tirx.LT) or a is None or b is None:
            return None
        found = loads(condition)
        if found and (not self._takes_loads or any(self._key in variables(x) for x in found)):
            return None
        is_loaded = any(self._query in variables(x) for x in found)
        if not str(a.ty.dtype).startswith("int"):
            return None
        # a <= b, or a < b: the difference is at least 0, or at least 1.
        analyzer = sym.Analyzer()
        above = int64(b) - int64(a) - (1 if kind is tirx.LT else 0)
        step = _step(above, self._key, analyzer)
        along, period = (above, None) if is_loaded else _in_one_period(above, self._query)
        is_still = self._query is None or is_loaded
        slope = 0 if is_still else _step(along, self._query, analyzer)
        if step not in (-1, 1) or slope not in (-1, 0, 1):
            return None
        limit = analyzer.simplify(substitute(above, {self._key: index(0)}))
        if step == -1:
            return Bound(limit, True, slope, period, is_loaded)
        return Bound(analyzer.simplify(0 - limit), False, -slope, period, is_loaded)


def _counted(condition: ir.Expr) -> ir.Expr:
    """Add positions that are read from memory to those of rows and keys as indices are.

    Sums of 64 bits wrap around only beyond 2**62, where no position is.
    """
    plain = {"wrapping_add": tirx.Add, "wrapping_sub": tirx.Sub}

    def change(call: ir.Call) -> ir.Expr:
        kind = plain.get(call_name(call))
        return call if kind is None or str(call.ty.dtype) != "int64" else kind(*call.args)

    return structural_map(condition, (ir.Call, change), order="post")


def _in_one_period(expr: ir.Expr, query: ir.Var | None) -> tuple[ir.Expr, int | ir.Expr | None]:
    """Put the query for its remainder, if nothing else of it is there; with the divisor."""
    found = [m for m in find(expr, tirx.FloorMod) if query is not None and m.a.same_as(query)]
    if not found or not all(tvm_ffi.structural_equal(m.b, found[0].b) for m in found):
        return expr, None
    row = ir.Var("row", ir.PrimType("int64"))

    def change(part: tirx.FloorMod) -> ir.Expr:
        return row if part.a.same_as(query) else part

    moved = structural_map(expr, (tirx.FloorMod, change))
    if query in variables(moved):
        return expr, None
    period = constant(found[0].b)
    return substitute(moved, {row: query}), found[0].b if period is None else period


def _step(expr: ir.Expr, axis: ir.Var, analyzer: sym.Analyzer) -> int | None:
    moved = analyzer.simplify(substitute(expr, {axis: axis + 1}) - expr)
    return int(moved) if isinstance(moved, tirx.IntImm) else None


def _conjuncts(condition: ir.Expr, negated: bool) -> list[ir.Expr]:
    if isinstance(condition, tirx.Not):
        return _conjuncts(condition.a, not negated)
    if isinstance(condition, tirx.Or if negated else tirx.And):
        return [*_conjuncts(condition.a, negated), *_conjuncts(condition.b, negated)]
    opposite = {tirx.LE: tirx.GT, tirx.LT: tirx.GE, tirx.GE: tirx.LT, tirx.GT: tirx.LE}
    if not negated:
        return [condition]
    kind = opposite.get(type(condition))
    return [tirx.Not(condition) if kind is None else kind(condition.a, condition.b)]


def number(expr: ir.Expr) -> float | None:
    """Return the value of a floating point constant, casts aside."""
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return float(expr.value) if isinstance(expr, tirx.FloatImm) else None


def _is_zero(expr: ir.Expr) -> bool:
    return number(expr) == 0
