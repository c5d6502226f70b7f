"""Reductions of scaled, shifted and mapped tensors.

What is done after a reduction is done once a row. Two reductions, one after the other, are two
kernels or two passes; reductions of one tensor may share one.
"""

from __future__ import annotations

from tvm.relax import op

from .expression import expression, number, positive

M = (96, 320)
COLUMN = (96, 1)
CUBE = (24, 40, 56)


@expression(x=M, s=COLUMN)
def sum_of_scaled_rows(x, s):
    """The scale is a row's: one product a row."""
    return op.sum(x * s, axis=1, keepdims=True), op.sum(x, axis=1, keepdims=True) * s


@expression(x=M, s=COLUMN, t=COLUMN)
def mean_of_affine_rows(x, s, t):
    """Scale and shift are a row's: two operators a row."""
    mean = op.mean(x, axis=1, keepdims=True)
    return op.mean(x * s + t, axis=1, keepdims=True), mean * s + t


@expression(x=M, y=M, s=COLUMN)
def sum_of_scale_between(x, y, s):
    """The scale stands between two tensors that the sum is over."""
    before = op.sum((x * s) * y, axis=1, keepdims=True)
    return before, op.sum(x * y, axis=1, keepdims=True) * s


@expression(x=M, s=positive(*COLUMN))
def largest_of_scaled_rows(x, s):
    """Adding to a row does not change which of its elements is the largest."""
    before = op.max(x + op.sqrt(s), axis=1, keepdims=True)
    return before, op.max(x, axis=1, keepdims=True) + op.sqrt(s)


@expression(x=M)
def largest_of_exponentials(x):
    """The exponential is monotone: one a row."""
    return op.max(op.exp(x), axis=1), op.exp(op.max(x, axis=1))


@expression(x=CUBE)
def sum_of_sums(x):
    """One reduction over two axes instead of two reductions."""
    return op.sum(op.sum(x, axis=2), axis=1), op.sum(x, axis=[1, 2])


@expression(x=CUBE)
def mean_times_its_count(x):
    """A mean times the number of elements is their sum, over both axes at once."""
    before = op.mean(op.sum(x, axis=2), axis=1) * number(40.0)
    return before, op.sum(x, axis=[1, 2])


@expression(x=M, s=COLUMN)
def sum_of_a_repeated_column(x, s):
    """A column that is added to 320 elements adds 320 times itself to their sum."""
    before = op.sum(x + s, axis=1, keepdims=True)
    return before, op.sum(x, axis=1, keepdims=True) + s * number(320.0)


@expression(x=M)
def logarithm_of_softmax(x):
    """The logarithm of a quotient: no division, and one logarithm a row."""
    e = op.exp(x)
    total = op.sum(e, axis=1, keepdims=True)
    return op.log(e / total), x - op.log(total)


@expression(x=M, y=M)
def weighted_by_softmax(x, y):
    """Dividing by a row's sum after the sum over the row: one division a row instead of 320."""
    e = op.exp(x)
    total = op.sum(e, axis=1)
    weights = e / op.expand_dims(total, 1)
    return op.sum(weights * y, axis=1), op.sum(e * y, axis=1) / total


@expression(x=M, s=COLUMN, y=M)
def two_reductions_with_one_scale(x, s, y):
    """The scale is common to both sums, and a row's: no product of all elements is left."""
    first = op.sum(x * s, axis=1, keepdims=True)
    second = op.sum(y * s, axis=1, keepdims=True)
    plain = op.sum(x + y, axis=1, keepdims=True)
    return first + second, plain * s
