"""Square roots and squares.

A square root that is finite has told the sign of its operand, so ``sqrt(a) * sqrt(a) = a`` needs no
check; the other direction does.
"""

from __future__ import annotations

from ...core.template import Refusal
from ..law import Law, Match
from ..pattern import function, tensors
from .conditions import OnFloats, all_of, floating, nonnegative

a, b = tensors("a b")
sqrt, rsqrt = function("relax.sqrt"), function("relax.rsqrt")
square, absolute = function("relax.square"), function("relax.abs")


class SquareRootTwice(OnFloats):
    """sqrt(a) * sqrt(a) = a."""

    name = "square_root_twice"
    before = sqrt(a) * sqrt(a)
    after = a


class RootOfSquare(OnFloats):
    """sqrt(a * a) = abs(a)."""

    name = "root_of_square"
    before = sqrt(a * a)
    after = absolute(a)


class MultiplyRoots(OnFloats):
    """sqrt(a) * sqrt(b) = sqrt(a * b)."""

    name = "multiply_roots"
    before = sqrt(a) * sqrt(b)
    after = sqrt(a * b)
    needs = "reassociate"


class SplitRoot(Law):
    """sqrt(a * b) = sqrt(a) * sqrt(b)."""

    # Nearer to 1 than a * b, so that nothing overflows; it pays where a root is simple.
    name = "split_root"
    before = sqrt(a * b)
    after = sqrt(a) * sqrt(b)

    def check(self, match: Match) -> Refusal | None:
        """Refuse factors that may both be negative."""
        return all_of(floating(match), nonnegative(match, "a", "b"))


class DivideRoots(OnFloats):
    """sqrt(a) / sqrt(b) = sqrt(a / b)."""

    name = "divide_roots"
    before = sqrt(a) / sqrt(b)
    after = sqrt(a / b)
    needs = "reassociate"


class ReciprocalRoot(OnFloats):
    """1 / sqrt(a) = rsqrt(a)."""

    name = "reciprocal_root"
    before = 1 / sqrt(a)
    after = rsqrt(a)
    both = True


class DivideByRoot(OnFloats):
    """a / sqrt(b) = a * rsqrt(b)."""

    name = "divide_by_root"
    before = a / sqrt(b)
    after = a * rsqrt(b)


class DivideByReciprocalRoot(OnFloats):
    """a / rsqrt(b) = a * sqrt(b)."""

    name = "divide_by_reciprocal_root"
    before = a / rsqrt(b)
    after = a * sqrt(b)


class ReciprocalRootTwice(OnFloats):
    """rsqrt(a) * rsqrt(a) = 1 / a."""

    name = "reciprocal_root_twice"
    before = rsqrt(a) * rsqrt(a)
    after = 1 / a


class MultiplyByReciprocalRoot(OnFloats):
    """a * rsqrt(a) = sqrt(a)."""

    name = "multiply_by_reciprocal_root"
    before = a * rsqrt(a)
    after = sqrt(a)


class RootOfReciprocal(OnFloats):
    """sqrt(1 / a) = rsqrt(a)."""

    name = "root_of_reciprocal"
    before = sqrt(1 / a)
    after = rsqrt(a)


class SquareAsProduct(Law):
    """square(a) = a * a."""

    name = "square_as_product"
    before = square(a)
    after = a * a
    both = True


class MultiplySquares(OnFloats):
    """square(a) * square(b) = square(a * b)."""

    # A product that overflows has a square that does; one that underflows has the square 0.
    name = "multiply_squares"
    before = square(a) * square(b)
    after = square(a * b)


class DivideSquares(OnFloats):
    """square(a) / square(b) = square(a / b)."""

    name = "divide_squares"
    before = square(a) / square(b)
    after = square(a / b)


LAWS: tuple[Law, ...] = (
    SquareRootTwice(),
    RootOfSquare(),
    SplitRoot(),
    MultiplyRoots(),
    DivideRoots(),
    ReciprocalRoot(),
    DivideByRoot(),
    DivideByReciprocalRoot(),
    ReciprocalRootTwice(),
    MultiplyByReciprocalRoot(),
    RootOfReciprocal(),
    SquareAsProduct(),
    MultiplySquares(),
    DivideSquares(),
)
