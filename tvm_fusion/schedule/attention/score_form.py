"""The score expression of attention as bounds of visible keys, a constant scale, and the rest.

``where(key <= query + c, x, -inf)`` and ``x + where(.., 0, -inf)`` hide keys by their position
alone: causal masks, sliding windows. Tiles of keys that are hidden from all rows of a block are
skipped, those that all rows see are computed as ``x``; only the others test positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ...core.expressions import choice, int64, loads, variables
from ...core.loops import index, substitute
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
    """

    limit: ir.Expr
    is_upper: bool
    slope: int


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
        skips = not finite or (is_plain and reader.on_top and _sees_first(pattern, bounds))
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
        self.on_top = True
        self.opaque = False  # whether a constant as low as a mask is left

    def strip(self, expr: ir.Expr, top: bool = True) -> ir.Expr:
        """Return the expression where the conditions that are taken into account hold."""
        chosen = choice(expr)
        if chosen is not None:
            return self._choice(expr, *chosen, top=top)
        if isinstance(expr, tirx.Add):
            a, b = self.strip(expr.a, False), self.strip(expr.b, False)
            if _is_zero(b) or _is_zero(a):
                return a if _is_zero(b) else b
            return a + b
        if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.FloatImm):
            return tirx.Mul(self.strip(expr.a, False), expr.b)
        low = _number(expr)
        self.opaque |= low is not None and low <= HIDDEN
        return expr

    def _choice(
        self, expr: ir.Expr, condition: ir.Expr, then: ir.Expr, otherwise: ir.Expr, top: bool
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
            self.on_top &= top
            return self.strip(seen, top)
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
        slope = 0 if self._query is None else _step(above, self._query, analyzer)
        if step not in (-1, 1) or slope not in (-1, 0, 1):
            return None
        limit = analyzer.simplify(substitute(above, {self._key: index(0)}))
        if step == -1:
            return Bound(limit, True, slope)
        return Bound(analyzer.simplify(0 - limit), False, -slope)


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


def _sees_first(pattern: Pattern, bounds: Sequence[Bound]) -> bool:
    """Whether every row sees the first key."""
    analyzer = sym.Analyzer()
    if pattern.query is not None:
        rows = ir.Range.from_min_extent(index(0), index(pattern.query.extent))
        analyzer.bind(pattern.query.var, rows)
    return all(
        analyzer.can_prove(b.limit >= 0 if b.is_upper else b.limit <= 0)
        and not variables(b.limit) - ({pattern.query.var} if pattern.query else set())
        for b in bounds
    )


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
    if _scale(expr) != scale:
        return None
    while isinstance(expr, tirx.Mul) and _number(expr.a) is not None:
        expr = expr.b
    while isinstance(expr, tirx.Mul) and (
        _number(expr.b) is not None or _number(expr.a) is not None
    ):
        expr = expr.a if _number(expr.b) is not None else expr.b
    return expr
