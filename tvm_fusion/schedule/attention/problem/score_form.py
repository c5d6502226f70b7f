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

from ....core.tir.expressions import choice, loads, variables
from ....core.tir.loops import index, substitute
from .mask_bounds import HIDDEN, Bound, MaskReader, number
from .pattern import Pattern


@dataclass(frozen=True)
class ScoreForm:
    """The input of softmax, divided by ``factor``."""

    full: ir.Expr  # everywhere
    inside: ir.Expr  # where all bounds hold
    factor: float  # positive; the scores are these expressions times it
    bounds: tuple[Bound, ...]  # keys that do not keep them are hidden
    skips: bool  # whether tiles of hidden keys change no result
    # Whether scores but minus infinity, and the running maximum of a row that has seen a tile, are
    # small enough to multiply before they are subtracted.
    is_bounded: bool
    hides_wholly: bool  # whether scores of hidden keys are minus infinity

    @classmethod
    def of(cls, pattern: Pattern, factor: ir.Expr | None, takes_loads: bool = False) -> ScoreForm:
        """Find the bounds and the scale in the score of a pattern.

        Parameters
        ----------
        pattern
            The attention; constants are numbers.
        factor
            What operands were divided by: a factor of their product.
        takes_loads
            Whether bounds may be read from memory.
        """
        score = pattern.score
        if factor is not None:
            score = substitute(score, {pattern.raw: pattern.raw * factor})
        reader = MaskReader(pattern, takes_loads)
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
            not finite,
        )


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


def _scale(expr: ir.Expr) -> float | None:
    """Return the product of the constant factors of an expression."""
    total = 1.0
    while isinstance(expr, tirx.Mul):
        pairs = [(x, y) for x, y in ((expr.a, expr.b), (expr.b, expr.a)) if number(x) is not None]
        if not pairs:
            break
        factor, expr = pairs[0]
        total *= number(factor) or 0.0
    return total if 0 < total < math.inf and total != 1 else None


def _is_added_mask(expr: ir.Expr, scale: float) -> bool:
    """Whether an expression is zero or a mask, multiplied by a factor or not."""
    chosen = choice(expr)
    if chosen is None:
        return False
    values = sorted(x for x in map(number, chosen[1:]) if x is not None)
    return len(values) == 2 and values[1] == 0 and max(values[0], values[0] * scale) <= HIDDEN


def _divided(expr: ir.Expr, scale: float) -> ir.Expr | None:
    """Divide an expression by its constant factors; a mask stays what it is."""
    value = number(expr)
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
    while isinstance(expr, tirx.Mul) and number(expr.a) is not None:
        expr = expr.b
    while isinstance(expr, tirx.Mul) and (number(expr.b) is not None or number(expr.a) is not None):
        expr = expr.a if number(expr.b) is not None else expr.b
    return expr
