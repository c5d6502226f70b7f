"""Common factors and summands.

Elementwise operators count by their number: operands are equally large, and all of them fit into
one kernel, which reads each tensor once.
"""

from .expression import expression, number

M = (96, 320)
ROW = (1, 320)
COLUMN = (96, 1)


@expression(a=M, b=M, c=M)
def two_summands(a, b, c):
    """One product instead of two: both a and b must be read, so an addition is needed."""
    return a * c + b * c, (a + b) * c


@expression(a=M, b=M, c=M, d=M)
def three_summands(a, b, c, d):
    """One product; two additions join three tensors."""
    return a * d + d * b + c * d, (a + b + c) * d


@expression(a=M, b=M, c=M, d=M, x=M)
def four_summands_in_pairs(a, b, c, d, x):
    """One product; three additions join four tensors."""
    return (a * x + x * b) + (c * x + x * d), ((a + b) + (c + d)) * x


@expression(a=M, b=M, c=M, x=M)
def a_summand_between(a, b, c, x):
    """The factor is common to the first and the last of three summands: 3 operators, not 4."""
    return (a * x + b) + c * x, (a + c) * x + b


@expression(a=M, b=M, c=M, d=M, x=M, y=M)
def two_factors_in_turn(a, b, c, d, x, y):
    """Two products and three additions of six tensors, instead of seven operators."""
    return ((a * x + b * y) + c * x) + d * y, (a + c) * x + (b + d) * y


@expression(a=M, b=M, c=M, d=M)
def product_of_two_sums(a, b, c, d):
    """Four tensors need three operators."""
    return ((a * c + a * d) + b * c) + b * d, (a + b) * (c + d)


@expression(a=M, b=M, c=M, d=M, e=M)
def a_sum_as_factor(a, b, c, d, e):
    """b + c is a factor of both summands once the first product is written otherwise."""
    return (a * b + a * c) * d + (b + c) * e, (b + c) * (a * d + e)


@expression(x=M, a=M, b=M, c=M, d=M)
def horner(x, a, b, c, d):
    """Horner's scheme: a polynomial of third degree takes three products (Ostrowski, 1954)."""
    square = x * x
    cube = square * x
    return ((d + c * x) + b * square) + a * cube, ((a * x + b) * x + c) * x + d


@expression(a=M, s=COLUMN, t=COLUMN)
def small_operands_first(a, s, t):
    """The product of two columns is a column: one product of all elements instead of two."""
    return (a * s) * t, a * (s * t)


@expression(a=M, b=M, c=M)
def a_sum_less_a_sum(a, b, c):
    """a and c are added and taken away again."""
    return ((a + b) + c) * b - (a + c) * b, b * b


@expression(a=M, b=M, c=M)
def two_negated_factors(a, b, c):
    """Two signs cancel though a factor stands between them."""
    return (-a) * c * (-b), a * b * c


@expression(x=M)
def affine_numbers(x):
    """All of it is affine in x: one product and one sum."""
    before = ((x + number(1.0)) * number(2.0) + number(3.0)) * number(4.0)
    return before, x * number(8.0) + number(20.0)


@expression(x=M, y=M)
def scattered_numbers(x, y):
    """Three numbers make one."""
    before = (x * number(2.0)) * (y * number(3.0)) * number(0.5)
    return before, x * y * number(3.0)
