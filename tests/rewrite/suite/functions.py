"""Powers, roots, exponentials, the order of elements, choices and casts.

A division or a root counts four additions, an exponential or a logarithm sixteen.
"""

from tvm.relax import op

from .expression import Leaf, expression, number, positive

M = (96, 320)
BOTH = positive(*M)


@expression(a=M, b=BOTH, c=BOTH, d=M)
def quotients_that_cancel(a, b, c, d):
    """b is a divisor, and a factor again: one division and one product are left."""
    return ((a / b) * d) * (b / c), (a * d) / c


@expression(a=M, b=BOTH, c=BOTH, d=BOTH)
def quotient_of_products(a, b, c, d):
    """Two divisions become one; four tensors need three operators."""
    return (a / b) * (c / d), (a * c) / (b * d)


@expression(a=M, b=M, d=M)
def exponentials_apart(a, b, d):
    """One exponential instead of two."""
    return (op.exp(a) * d) * op.exp(b), op.exp(a + b) * d


@expression(a=BOTH, b=BOTH, c=M)
def logarithms_apart(a, b, c):
    """One logarithm instead of two."""
    return (op.log(a) + c) + op.log(b), op.log(a * b) + c


@expression(x=M, y=BOTH)
def logarithm_of_exponential(x, y):
    """The logarithm undoes the exponential; what is in between must be taken apart first."""
    return op.log(op.exp(x) * y), x + op.log(y)


@expression(a=M, b=M, c=M, d=M)
def larger_of_sums_apart(a, b, c, d):
    """As before, with another tensor between the two sums."""
    return op.maximum(op.maximum(a + c, d), b + c), op.maximum(op.maximum(a, b) + c, d)


@expression(a=M, b=M, c=M)
def lattice(a, b, c):
    """Minimum distributes over maximum: two operators of three tensors."""
    before = op.minimum(op.maximum(a, b), op.maximum(c, a))
    return before, op.maximum(a, op.minimum(b, c))


@expression(x=M)
def clamped_twice(x):
    """The inner range lies within the outer one."""
    inner = op.minimum(op.maximum(x, number(0.0)), number(6.0))
    return op.minimum(op.maximum(inner, number(-1.0)), number(8.0)), inner


@expression(x=M, y=M)
def rectified_between(x, y):
    """Rectifying the maximum of rectified tensors is rectifying once."""
    before = op.nn.relu(op.maximum(op.nn.relu(x), op.nn.relu(y)))
    return before, op.nn.relu(op.maximum(x, y))


@expression(a=M, b=M, c=M, m=Leaf(M, "bool"))
def select_between_equals(a, b, c, m):
    """Both choices are one tensor, which has two forms: no choice is left."""
    return op.where(m, a * b + a * c, (b + c) * a), a * (b + c)


@expression(x=Leaf(M, "int8"), y=Leaf(M, "int8"), m=Leaf(M, "bool"))
def casts_of_choices(x, y, m):
    """Integers of eight bits are chosen first, and cast once."""

    def cast(v):
        return op.astype(op.astype(v, "int32"), "float32")

    return op.where(m, cast(x), cast(y)), op.astype(op.where(m, x, y), "float32")
