"""Layer and RMS norm: ways of writing them, and what is neither."""

import numpy as np
import pytest
from tvm import relax

from tests.rewrite.recompose.written import N, check, check_stays, const, op, tensor

EPS = float(np.float32(1e-5))  # as constants of the graphs are
B, S, C = 2, 5, 24
X, V = tensor(B, S, C), tensor(C)
ONES, ZEROS = (relax.const(np.full(C, v, "float32")) for v in (1.0, 0.0))


def mean(x, axis=-1, keepdims=True):
    return op.mean(x, axis, keepdims=keepdims)


def by_sum(x):
    return op.divide(op.sum(x, -1, keepdims=True), const(float(C)))


def by_reciprocal(x):
    return op.multiply(const(1.0 / C), op.sum(x, -1, keepdims=True))


def without_keepdims(x):
    return op.reshape(op.mean(x, -1), (B, S, 1))


def expanded(x):
    return op.broadcast_to(op.expand_dims(op.mean(x, -1), 2), (B, S, C))


MEANS = [mean, by_sum, by_reciprocal, without_keepdims, expanded]
SQUARES = [
    lambda d: op.multiply(d, d),
    op.square,
    lambda d: op.power(d, const(2.0)),
]
DIVISIONS = [
    lambda d, v: op.divide(d, op.sqrt(v)),
    lambda d, v: op.multiply(op.rsqrt(v), d),
    lambda d, v: op.multiply(d, op.power(v, const(-0.5))),
    lambda d, v: op.multiply(d, op.divide(const(1.0), op.sqrt(v))),
    lambda d, v: op.divide(d, op.power(v, const(0.5))),
    lambda d, v: op.multiply(d, op.sqrt(op.divide(const(1.0), v))),
]


def norm(x, mean=mean, square=SQUARES[0], divide=DIVISIONS[0]):
    d = op.subtract(x, mean(x))
    return divide(d, op.add(mean(square(d)), const(EPS)))


def affine(x, g, b):
    return op.add(op.multiply(x, g), b)


def layer_norm(x, g, b):
    return op.nn.layer_norm(x, g, b, [2], EPS)


def plain_layer_norm(x):
    return op.nn.layer_norm(x, ONES, ZEROS, [2], EPS, center=False, scale=False)


def approximate(log):
    assert [d.code for d in log] == ["recomposed"]


@pytest.mark.parametrize("mean", MEANS)
def test_means(mean):
    approximate(check(lambda x, g, b: affine(norm(x, mean), g, b), layer_norm, X, V, V))


@pytest.mark.parametrize("square", SQUARES)
def test_squares(square):
    check(lambda x, g, b: affine(norm(x, square=square), g, b), layer_norm, X, V, V)


@pytest.mark.parametrize("divide", DIVISIONS)
def test_divisions(divide):
    check(lambda x, g, b: affine(norm(x, divide=divide), g, b), layer_norm, X, V, V)


def commuted(x, g, b):
    return op.add(b, op.multiply(g, norm(x)))


def scale_before_the_division(x, g, b):
    d = op.subtract(x, mean(x))
    return op.add(op.multiply(d, op.multiply(op.rsqrt(op.add(const(EPS), mean(d * d))), g)), b)


def as_line(x, g, b):
    """As a line in ``x`` with its own slope for every row, which TensorFlow writes."""
    d = op.subtract(x, mean(x))
    slope = op.multiply(op.rsqrt(op.add(mean(op.square(d)), const(EPS))), g)
    return op.add(op.multiply(x, slope), op.subtract(b, op.multiply(mean(x), slope)))


def by_variance(x, g, b):
    d = op.subtract(x, mean(x))
    return affine(op.divide(d, op.sqrt(op.variance(x, -1, keepdims=True) + const(EPS))), g, b)


def by_moments(x, g, b):
    variance = op.subtract(mean(op.multiply(x, x)), op.square(mean(x)))
    return affine(op.divide(x - mean(x), op.sqrt(op.add(variance, const(EPS)))), g, b)


def by_clamped_moments(x, g, b):
    variance = op.maximum(op.subtract(mean(op.square(x)), op.square(mean(x))), const(0.0))
    return affine(op.multiply(x - mean(x), op.rsqrt(op.add(variance, const(EPS)))), g, b)


def deviations_computed_twice(x, g, b):
    d = op.subtract(x, op.reshape(op.mean(x, -1), (B, S, 1)))
    v = op.mean(op.multiply(d, d), -1, keepdims=True)
    return affine(op.divide(op.subtract(x, mean(x)), op.sqrt(op.add(v, const(EPS)))), g, b)


def sum_of_squares(x, g, b):
    """``d * sqrt(C) / sqrt(sum(d^2) + C * eps)``."""
    d = op.subtract(x, mean(x))
    v = op.add(op.sum(op.square(d), -1, keepdims=True), const(C * EPS))
    return affine(op.divide(op.multiply(d, const(C**0.5)), op.sqrt(v)), g, b)


@pytest.mark.parametrize(
    "write",
    [
        *(commuted, scale_before_the_division, as_line, by_variance, by_moments),
        *(by_clamped_moments, deviations_computed_twice),
    ],
)
def test_layer_norm(write):
    check(write, layer_norm, X, V, V)


def test_sum_of_squares_with_its_share_of_epsilon():
    def expected(x, g, b):
        return op.nn.layer_norm(x, g, b, [2], float(np.float32(C * EPS)) / C)

    check(sum_of_squares, expected, X, V, V)


def test_without_scale_and_shift():
    check(norm, plain_layer_norm, X)


def test_scale_alone():
    def expected(x, g):
        return op.nn.layer_norm(x, g, ZEROS, [2], EPS, center=False)

    check(lambda x, g: op.multiply(norm(x), g), expected, X, V)


def test_scale_with_axes_of_extent_one():
    g = np.linspace(1, 2, C, dtype="float32")

    def write(x):
        return op.multiply(norm(x), relax.const(g.reshape(1, 1, C)))

    def expected(x):
        return op.nn.layer_norm(x, relax.const(g), ZEROS, [2], EPS, center=False)

    check(write, expected, X)


def test_residual_sum_before_it():
    def write(x, r, g, b):
        return affine(norm(op.add(x, r)), g, b)

    def expected(x, r, g, b):
        return layer_norm(op.add(x, r), g, b)

    check(write, expected, X, X, V, V)


def test_residual_sum_after_it_is_no_shift():
    def write(x, r, g, b):
        return op.add(affine(norm(x), g, b), r)

    def expected(x, r, g, b):
        return op.add(layer_norm(x, g, b), r)

    check(write, expected, X, X, V, V)


def test_scale_of_every_sequence_is_not_taken():
    def write(x, g):
        return op.multiply(norm(x), g)

    def expected(x, g):
        return op.multiply(plain_layer_norm(x), g)

    check(write, expected, X, tensor(B, 1, C))


def test_first_axes():
    def write(x, g, b):
        m = op.mean(x, [1, 2], keepdims=True)
        v = op.variance(x, [1, 2], keepdims=True)
        return affine(op.divide(op.subtract(x, m), op.sqrt(op.add(v, const(EPS)))), g, b)

    def expected(x, g, b):
        return op.nn.layer_norm(x, g, b, [1, 2], EPS)

    check(write, expected, X, tensor(S, C), tensor(S, C))


def test_symbolic_rows_and_columns():
    def write(x, g, b):
        return affine(norm(x), g, b)

    def expected(x, g, b):
        return op.nn.layer_norm(x, g, b, [1], EPS)

    check(write, expected, tensor(N, C), V, V)
    check(write, expected, tensor(3, N), tensor(N), tensor(N))


def test_half_type_with_float32_inside():
    def write(x, g, b):
        return affine(op.astype(norm(op.astype(x, "float32")), "float16"), g, b)

    half = [tensor(*shape, dtype="float16") for shape in ((B, S, C), (C,), (C,))]
    check(write, layer_norm, *half)


def test_deviations_that_are_read_elsewhere_are_still_computed():
    def write(x):
        d = op.subtract(x, mean(x))
        return d, op.divide(d, op.sqrt(op.add(mean(op.multiply(d, d)), const(EPS))))

    def expected(x):
        return op.subtract(x, mean(x)), plain_layer_norm(x)

    check(write, expected, X)


def rms(x, g):
    return op.multiply(op.multiply(x, op.rsqrt(op.add(mean(op.square(x)), const(EPS)))), g)


def rms_by_power(x, g):
    return op.multiply(g, op.divide(x, op.sqrt(op.add(mean(op.power(x, const(2.0))), const(EPS)))))


def rms_by_sum(x, g):
    squares = op.divide(op.sum(op.multiply(x, x), -1), const(float(C)))
    scale = op.divide(const(1.0), op.sqrt(op.expand_dims(op.add(const(EPS), squares), -1)))
    return op.multiply(op.multiply(g, scale), x)


@pytest.mark.parametrize("write", [rms, rms_by_power, rms_by_sum])
def test_rms_norm(write):
    check(write, lambda x, g: op.nn.rms_norm(x, g, [2], EPS), X, V)


def test_rms_norm_without_scale():
    def write(x):
        return op.divide(x, op.sqrt(op.add(mean(op.square(x)), const(EPS))))

    check(write, lambda x: op.nn.rms_norm(x, ONES, [2], EPS), X)


def test_rms_norm_in_float32_between_halves():
    def write(x, g):
        wide = op.astype(x, "float32")
        scale = op.rsqrt(op.add(mean(op.square(wide)), const(EPS)))
        return op.multiply(g, op.astype(op.multiply(wide, scale), "float16"))

    def expected(x, g):
        return op.nn.rms_norm(x, g, [2], EPS)

    check(write, expected, tensor(B, S, C, dtype="float16"), tensor(C, dtype="float16"))


def test_half_type_with_a_wide_scale_stays_wide_inside():
    def write(x, g):
        wide = op.astype(x, "float32")
        scale = op.rsqrt(op.add(mean(op.square(wide)), const(EPS)))
        return op.astype(op.multiply(g, op.multiply(wide, scale)), "bfloat16")

    def expected(x, g):
        return op.astype(op.nn.rms_norm(op.astype(x, "float32"), g, [2], EPS), "bfloat16")

    check(write, expected, tensor(B, S, C, dtype="bfloat16"), tensor(C))


def epsilon_outside(x):
    d = op.subtract(x, mean(x))
    return op.divide(d, op.add(op.sqrt(mean(op.multiply(d, d))), const(EPS)))


def means_over_different_axes(x):
    d = op.subtract(x, mean(x))
    return op.divide(d, op.sqrt(op.add(mean(op.multiply(d, d), 1), const(EPS))))


def centred_over_another_axis(x):
    d = op.subtract(x, mean(x, 1))
    return op.divide(d, op.sqrt(op.add(mean(op.multiply(d, d)), const(EPS))))


def centred_by_the_maximum(x):
    d = op.subtract(x, op.max(x, -1, keepdims=True))
    return op.multiply(d, op.rsqrt(op.add(op.mean(op.abs(d), -1, keepdims=True), const(EPS))))


def variance_of_another_tensor(x):
    v = op.variance(op.exp(x), -1, keepdims=True)
    return op.divide(op.subtract(x, mean(x)), op.sqrt(op.add(v, const(EPS))))


def not_centred(x):
    return op.divide(x, op.sqrt(op.add(op.variance(x, -1, keepdims=True), const(EPS))))


def sum_of_wrong_size(x):
    squares = op.divide(op.sum(op.square(x), -1, keepdims=True), const(C + 1.0))
    return op.divide(x, op.add(op.sqrt(squares), const(0.0)) + op.exp(x))


def cube_root(x):
    return op.multiply(x, op.power(op.add(mean(op.square(x)), const(EPS)), const(-1 / 3)))


def negative_epsilon(x):
    return op.divide(x, op.sqrt(op.subtract(mean(op.square(x)), const(EPS))))


@pytest.mark.parametrize(
    "write",
    [
        *(epsilon_outside, means_over_different_axes, centred_over_another_axis),
        *(centred_by_the_maximum, variance_of_another_tensor, not_centred, sum_of_wrong_size),
        *(cube_root, negative_epsilon),
    ],
)
def test_near_misses_stay(write):
    check_stays(write, X)


def test_statistics_that_are_broadcast_along_the_other_axis_stay():
    def write(x):
        d = op.subtract(x, op.mean(x, -1))  # keepdims off
        return op.divide(d, op.sqrt(op.add(op.mean(op.square(d), -1), const(EPS))))

    check_stays(write, tensor(7, 7))


def test_half_of_the_mean_is_no_mean():
    def write(x):
        m = op.multiply(mean(x), const(0.5))
        d = op.subtract(x, mean(x))
        v = op.add(mean(op.square(d)), const(EPS))
        return op.divide(op.subtract(x, m), op.sqrt(v))

    log = check_stays(write, X)
    assert any("the value subtracted is not the mean" in d.sentence for d in log)
