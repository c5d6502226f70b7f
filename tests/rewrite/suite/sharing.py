"""Several outputs: what they share counts once, so the cheapest form of each is no answer."""

from tvm.relax import op

from .expression import expression

M = (96, 320)
X = (96, 64)


@expression(a=M, b=M, c=M, d=M)
def one_sum_in_two_orders(a, b, c, d):
    """Both outputs need the sum of four tensors: three additions instead of six."""
    total = a + b + (c + d)
    return ((total, op.exp(a + c + (b + d))), (total, op.exp(total)))


@expression(a=M, b=M, c=M, d=M, e=M)
def common_part_of_two_sums(a, b, c, d, e):
    """Three summands are common: two additions for them and one for each output."""
    common = a + c + d
    return ((a + b + c + d, a + c + e + d), (common + b, common + e))


@expression(a=M, b=M, c=M, d=M)
def common_part_of_three_products(a, b, c, d):
    """a * b is in all three: four products instead of six."""
    common = a * b
    before = (a * c * b, b * d * a, a * c * (b * d))
    return (before, (common * c, common * d, common * (c * d)))


@expression(a=M, b=M, c=M, d=M)
def a_sum_that_is_needed_anyway(a, b, c, d):
    """With b + c an output, distributed products become one product with it."""
    before = (a * b + d + a * c, b + c)
    return (before, (a * (b + c) + d, b + c))


@expression(a=X, b=X, w=(64, 80))
def product_of_a_sum_with_its_parts(a, b, w):
    """Two products with w are outputs: their sum is an addition, not a third product."""
    return (
        (op.matmul(a + b, w), op.matmul(a, w), op.matmul(b, w)),
        (op.matmul(a, w) + op.matmul(b, w), op.matmul(a, w), op.matmul(b, w)),
    )


@expression(a=(96, 64), b=(64, 64), v=(64, 8), u=(96, 8))
def one_chain_in_two_orders(a, b, v, u):
    """The costlier order of the first chain is free: the second output needs the product anyway."""
    return (
        (op.matmul(a, op.matmul(b, v)) + u, op.exp(op.matmul(a, b))),
        (op.matmul(op.matmul(a, b), v) + u, op.exp(op.matmul(a, b))),
    )


@expression(x=M)
def powers_in_order(x):
    """Each power is the product of two earlier ones: x^2, x^4, x^6, x^7."""
    two = x * x
    four = two * two
    six = four * two
    before = (x * x * x * x, x * x * x * x * x * x, x * x * x * x * x * x * x)
    return (before, (four, six, six * x))
