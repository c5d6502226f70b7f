"""Square roots and squares.

A square root that is finite has told the sign of its operand, so ``sqrt(a) * sqrt(a) = a`` needs no
check; the other direction does.
"""

from ...egraph.law import Equation, Law
from ...egraph.pattern import function, tensors
from ...nonfinite import NAN, PLUS, ZERO
from ..conditions import all_of, floating, nonnegative

a, b = tensors("a b")
sqrt, rsqrt = function("relax.sqrt"), function("relax.rsqrt")
square, absolute = function("relax.square"), function("relax.abs")


LAWS: tuple[Law, ...] = (
    Equation("square_root_twice", sqrt(a) * sqrt(a), a, floating, changes=NAN | ZERO),
    Equation("root_of_square", sqrt(a * a), absolute(a), floating, changes=PLUS),
    # Nearer to 1 than a * b, so that nothing overflows; it pays where a root is simple.
    # Refuses factors that may both be negative.
    Equation(
        "split_root",
        sqrt(a * b),
        sqrt(a) * sqrt(b),
        lambda match: all_of(floating(match), nonnegative(match, "a", "b")),
        changes=PLUS,
    ),
    Equation("multiply_roots", sqrt(a) * sqrt(b), sqrt(a * b), floating, needs="reassociate"),
    Equation("divide_roots", sqrt(a) / sqrt(b), sqrt(a / b), floating, needs="reassociate"),
    Equation("reciprocal_root", 1 / sqrt(a), rsqrt(a), floating, both=True),
    Equation("divide_by_root", a / sqrt(b), a * rsqrt(b), floating),
    Equation("divide_by_reciprocal_root", a / rsqrt(b), a * sqrt(b), floating),
    Equation("reciprocal_root_twice", rsqrt(a) * rsqrt(a), 1 / a, floating, changes=NAN | PLUS),
    Equation("multiply_by_reciprocal_root", a * rsqrt(a), sqrt(a), floating, changes=NAN),
    # Refuses what may be negative: the reciprocal of minus infinity has a root.
    Equation(
        "root_of_reciprocal",
        sqrt(1 / a),
        rsqrt(a),
        lambda match: all_of(floating(match), nonnegative(match, "a")),
        changes=NAN | PLUS,
    ),
    Equation("square_as_product", square(a), a * a, both=True),
    # A product that overflows has a square that does; one that underflows has the square 0.
    Equation("multiply_squares", square(a) * square(b), square(a * b), changes=NAN | PLUS),
    # A square in the divisor that overflows gives 0 in the original.
    Equation(
        "divide_squares",
        square(a) / square(b),
        square(a / b),
        floating,
        needs="reassociate",
    ),
)
