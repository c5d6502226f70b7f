"""The score expression of attention as bounds of visible keys, a constant scale, and the rest.

``where(key <= query + c, x, -inf)`` and ``x + where(.., 0, -inf)`` hide keys by their position
alone: causal masks, sliding windows. Tiles of keys that are hidden from all rows of a block are
skipped, those that all rows see are computed as ``x``; only the others test positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ..._tvm.structural import structural_map
from ...core.expressions import choice, int64, loads, variables
from ...core.loops import constant, find, index, simplified, substitute
from .pattern import Pattern

HIDDEN = -1e30  # finite scores of at most so much are masks, too


@dataclass(frozen=True)
class Bound:
    """``key <= limit``, or ``key >= limit``.

    Attributes
    ----------
    limit : PrimExpr
        Over the query, and axes that a block does not run along.
    is_upper : bool
        Which of both.
    slope : int
        What a row adds to the limit: -1, 0 or 1.
    period : int or None
        Rows after which the limits begin anew: those of one of several heads that share keys.
    """

    limit: ir.Expr
    is_upper: bool
    slope: int
    period: int | None = None

    def extreme(
        self,
        query: ir.Var | None,
        rows: tuple[ir.Expr, ir.Expr],
        where: Mapping[ir.Var, ir.Expr],
        largest: bool,
        block: int = 1,
    ) -> ir.Expr:
        """Give the largest or the smallest limit among neighbouring rows.

        Parameters
        ----------
        query : Var or None
            Runs along the rows.
        rows : tuple of PrimExpr
            The first and the last one.
        where : Mapping of Var to PrimExpr
            The position along other axes.
        largest : bool
            Which of both.
        block : int
            The rows are of one block of so many, the first block being the first rows; 1 for
            any rows.
        """
        takes_last = (self.slope > 0) == largest
        row = rows[1 if takes_last else 0]
        if self.period is not None and (block == 1 or self.period % block):
            begun = [tirx.floordiv(x, index(self.period)) for x in rows]
            extreme = index(self.period - 1 if takes_last else 0)
            row = simplified(tirx.Select(tirx.EQ(*begun), row, extreme))
        return substitute(self.limit, {**where, **({} if query is None else {query: row})})


@dataclass(frozen=True)
class ScoreForm:
    """The input of softmax, divided by ``factor``.

    Attributes
    ----------
    full : PrimExpr
        Everywhere.
    inside : PrimExpr
        Where all bounds hold.
    factor : float
        Positive; the scores are these expressions times it.
    bounds : tuple of Bound
        Keys that do not keep them are hidden.
    skips : bool
        Whether tiles of hidden keys change no result.
    is_bounded : bool
        Whether scores but minus infinity, and the running maximum of a row that has seen a tile,
        are small enough to multiply before they are subtracted.
    """

    full: ir.Expr
    inside: ir.Expr
    factor: float
    bounds: tuple[Bound, ...]
    skips: bool
    is_bounded: bool

    @classmethod
    def of(cls, pattern: Pattern, factor: ir.Expr | None) -> ScoreForm:
        """Find the bounds and the scale in the score of a pattern.

        Parameters
        ----------
        pattern : Pattern
            The attention; constants are numbers.
        factor : PrimExpr or None
            What operands were divided by: a factor of their product.
        """
        score = pattern.score
        if factor is not None:
            score = substitute(score, {pattern.raw: pattern.raw * factor})
        reader = _Reader(pattern)
        inside = reader.strip(score)
        bounds = tuple(reader.bounds)
        finite = [x for x in reader.hidden if x > -math.inf]
        is_plain = not loads(inside)
        # A row that sees no key averages the values of all keys whose scores are finite.
        skips = not finite or (is_plain and reader.hides and _sees_some(pattern, bounds))
        scale = _scale(inside)
        if scale is not None:
            divided = _divided(score, scale)
            if divided is not None:
                score, inside = divided, _divided(inside, scale)
        return cls(
            *(score, inside, 1.0 if scale is None or divided is None else scale),
            *(bounds, bool(bounds) and skips, is_plain and skips and not reader.opaque),
        )


class _Reader:
    """Replace choices that positions decide by their visible value."""

    def __init__(self, pattern: Pattern) -> None:
        self._key = pattern.key.var
        self._query = None if pattern.query is None else pattern.query.var
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
        low = _number(expr)
        self.opaque |= low is not None and low <= HIDDEN
        return expr

    def _choice(
        self, expr: ir.Expr, condition: ir.Expr, then: ir.Expr, otherwise: ir.Expr, is_sum: bool
    ) -> ir.Expr:
        for seen, other, negated in ((then, otherwise, False), (otherwise, then, True)):
            value = _number(other)
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
        flipped = {tirx.GE: tirx.LE, tirx.GT: tirx.LT}
        a, b, kind = getattr(condition, "a", None), getattr(condition, "b", None), type(condition)
        if kind in flipped:
            a, b, kind = b, a, flipped[kind]
        if kind not in (tirx.LE, tirx.LT) or loads(condition) or a is None or b is None:
            return None
        if not str(a.ty.dtype).startswith("int"):
            return None
        # a <= b, or a < b: the difference is at least 0, or at least 1.
        analyzer = sym.Analyzer()
        above = int64(b) - int64(a) - (1 if kind is tirx.LT else 0)
        step = _step(above, self._key, analyzer)
        along, period = _in_one_period(above, self._query)
        slope = 0 if self._query is None else _step(along, self._query, analyzer)
        if step not in (-1, 1) or slope not in (-1, 0, 1):
            return None
        limit = analyzer.simplify(substitute(above, {self._key: index(0)}))
        if step == -1:
            return Bound(limit, True, slope, period)
        return Bound(analyzer.simplify(0 - limit), False, -slope, period)


def _in_one_period(expr: ir.Expr, query: ir.Var | None) -> tuple[ir.Expr, int | None]:
    """Put the query for its remainder, if nothing else of it is there; with the divisor."""
    found = [m for m in find(expr, tirx.FloorMod) if query is not None and m.a.same_as(query)]
    periods = {constant(m.b) for m in found}
    if len(periods) != 1 or None in periods:
        return expr, None
    row = ir.Var("row", ir.PrimType("int64"))

    def change(part: tirx.FloorMod) -> ir.Expr:
        return row if part.a.same_as(query) else part

    moved = structural_map(expr, (tirx.FloorMod, change))
    if query in variables(moved):
        return expr, None
    return substitute(moved, {row: query}), periods.pop()


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


def _sees_some(pattern: Pattern, bounds: Sequence[Bound]) -> bool:
    """Whether every row sees a key."""
    analyzer = sym.Analyzer()
    if pattern.query is not None:
        rows = ir.Range.from_min_extent(index(0), index(pattern.query.extent))
        analyzer.bind(pattern.query.var, rows)
    rows_of = {pattern.query.var} if pattern.query else set()
    if any(variables(b.limit) - rows_of for b in bounds):
        return False
    first = [index(0), *(b.limit for b in bounds if not b.is_upper)]
    last = [index(pattern.key.extent) - 1, *(b.limit for b in bounds if b.is_upper)]
    return all(analyzer.can_prove(low <= high) for low in first for high in last)


def _number(expr: ir.Expr) -> float | None:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return float(expr.value) if isinstance(expr, tirx.FloatImm) else None


def _is_zero(expr: ir.Expr) -> bool:
    return _number(expr) == 0


def _scale(expr: ir.Expr) -> float | None:
    """Give the product of the constant factors of an expression."""
    total = 1.0
    while isinstance(expr, tirx.Mul):
        pairs = [(x, y) for x, y in ((expr.a, expr.b), (expr.b, expr.a)) if _number(x) is not None]
        if not pairs:
            break
        factor, expr = pairs[0]
        total *= _number(factor) or 0.0
    return total if 0 < total < math.inf and total != 1 else None


def _is_added_mask(expr: ir.Expr, scale: float) -> bool:
    """Whether an expression is zero or a mask, multiplied by a factor or not."""
    chosen = choice(expr)
    if chosen is None:
        return False
    values = sorted(x for x in map(_number, chosen[1:]) if x is not None)
    return len(values) == 2 and values[1] == 0 and max(values[0], values[0] * scale) <= HIDDEN


def _divided(expr: ir.Expr, scale: float) -> ir.Expr | None:
    """Divide an expression by its constant factors; a mask stays what it is."""
    value = _number(expr)
    if value is not None and value <= HIDDEN:
        return expr
    chosen = choice(expr)
    if chosen is not None:
        then, otherwise = _divided(chosen[1], scale), _divided(chosen[2], scale)
        if then is None or otherwise is None:
            return None
        return tirx.Select(chosen[0], then, otherwise)
    if isinstance(expr, tirx.Add):
        for mask, other in ((expr.a, expr.b), (expr.b, expr.a)):
            if _is_added_mask(mask, scale):
                seen = _divided(other, scale)
                return None if seen is None else seen + mask
    if _scale(expr) != scale:
        return None
    while isinstance(expr, tirx.Mul) and _number(expr.a) is not None:
        expr = expr.b
    while isinstance(expr, tirx.Mul) and (
        _number(expr.b) is not None or _number(expr.a) is not None
    ):
        expr = expr.a if _number(expr.b) is not None else expr.b
    return expr
