"""Reductions of scaled, shifted and mapped tensors.

What is done after a reduction is done once a row. Two reductions, one after the other, are two
kernels or two passes; reductions of one tensor may share one.
"""

from tvm.relax import op

from .expression import expression

M = (96, 320)
COLUMN = (96, 1)
CUBE = (24, 40, 56)


@expression(x=M, s=COLUMN)
def sum_of_scaled_rows(x, s):
    """The scale is a row's: one product a row."""
    return op.sum(x * s, axis=1, keepdims=True), op.sum(x, axis=1, keepdims=True) * s


@expression(x=M, y=M, s=COLUMN)
def sum_of_scale_between(x, y, s):
    """The scale stands between two tensors that the sum is over."""
    before = op.sum((x * s) * y, axis=1, keepdims=True)
    return before, op.sum(x * y, axis=1, keepdims=True) * s


@expression(x=M)
def largest_of_exponentials(x):
    """The exponential is monotone: one a row."""
    return op.max(op.exp(x), axis=1), op.exp(op.max(x, axis=1))


@expression(x=CUBE)
def sum_of_sums(x):
    """One reduction over two axes instead of two reductions."""
    return op.sum(op.sum(x, axis=2), axis=1), op.sum(x, axis=[1, 2])


@expression(x=M)
def logarithm_of_softmax(x):
    """The logarithm of a quotient: no division, and one logarithm a row."""
    e = op.exp(x)
    total = op.sum(e, axis=1, keepdims=True)
    return op.log(e / total), x - op.log(total)
