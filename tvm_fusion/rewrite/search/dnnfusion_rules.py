"""Rules of DNNFusion (Niu et al., PLDI 2021, table 4) that take more than one of our laws.

The search does not need them, but finds what they say; the greedy one, to be compared with, does.
"""

from __future__ import annotations

from ..egraph.law import Law
from ..egraph.pattern import function, tensors

a, b, c = tensors("a b c")
absolute, sqrt, square = (function(f"relax.{name}") for name in ("abs", "sqrt", "square"))
total = function("relax.sum", "axes")


class Reciprocals(Law):
    """1 / a * (1 / (a * b)) = square(1 / a) * (1 / b)."""

    name = "published_reciprocals"
    before = (1 / a) * (1 / (a * b))
    after = square(1 / a) * (1 / b)
    needs = "reassociate"


class Roots(Law):
    """a * sqrt(b) * (sqrt(b) * c) = a * b * c."""

    name = "published_roots"
    before = (a * sqrt(b)) * (sqrt(b) * c)
    after = a * b * c
    needs = "reassociate"


class AbsoluteValues(Law):
    """abs(a) * b * abs(c) = abs(a * c) * b."""

    name = "published_absolute_values"
    before = absolute(a) * b * absolute(c)
    after = absolute(a * c) * b
    needs = "reassociate"


class SumsOfRows(Law):
    """a * sum(b, axes) * (sum(b, axes) * c) = a * square(sum(b, axes)) * c."""

    name = "published_sums_of_rows"
    before = (a * total(b)) * (total(b) * c)
    after = a * square(total(b)) * c
    needs = "reassociate"


class SquareOfASum(Law):
    """square(a + b) - (a + b) * c = (a + b) * (a + b - c)."""

    name = "published_square_of_a_sum"
    before = square(a + b) - (a + b) * c
    after = (a + b) * (a + b - c)
    needs = "reassociate"


#: Rules of DNNFusion's table 4 that take more than one of our laws; the others are among these.
PUBLISHED: tuple[Law, ...] = (
    Reciprocals(),
    Roots(),
    AbsoluteValues(),
    SumsOfRows(),
    SquareOfASum(),
)
