"""The rules that DNNFusion publishes (Niu et al., PLDI 2021, table 4), as expressions.

Where our form is cheaper than the published one, that is the optimum.
"""

from tvm.relax import op

from .expression import Leaf, expression, number, positive

M = (96, 320)
BOTH = positive(*M)


@expression(a=BOTH, b=BOTH)
def reciprocals(a, b):
    """One division and two products; published are two divisions and two products."""
    one = number(1.0)
    return (one / a) * (one / (a * b)), one / ((a * a) * b)


@expression(a=M, b=BOTH, c=M)
def roots(a, b, c):
    """Two roots of one tensor make the tensor."""
    return (a * op.sqrt(b)) * (op.sqrt(b) * c), a * b * c


@expression(a=M, b=M, c=M)
def absolute_values(a, b, c):
    """One absolute value instead of two."""
    return op.abs(a) * b * op.abs(c), op.abs(a * c) * b


@expression(a=M, b=M, c=M)
def sums_of_rows(a, b, c):
    """The sum is squared once a row: two products of all elements."""
    s = op.sum(b, axis=1, keepdims=True)
    return (a * s) * (s * c), (a * c) * (s * s)


@expression(a=M, b=M, c=M)
def square_of_a_sum(a, b, c):
    """The square is a product with the common factor."""
    s = a + b
    return op.square(s) - s * c, s * (s - c)


@expression(x=Leaf((96, 320), "int32"))
def sum_of_shifted(x):
    """One shift a row."""
    three = number(3, "int32")
    return op.sum(op.left_shift(x, three), axis=1), op.left_shift(op.sum(x, axis=1), three)


@expression(x=M)
def product_of_exponentials(x):
    """One exponential a row."""
    return op.prod(op.exp(x), axis=1), op.exp(op.sum(x, axis=1))
