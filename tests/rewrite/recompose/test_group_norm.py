"""Group and instance norm through reshapes, and what is neither."""

import numpy as np
import pytest
from tvm import relax

from tests.rewrite.recompose.written import check, check_stays, const, op, tensor

EPS = float(np.float32(1e-5))
B, C, H, W, G = 2, 6, 3, 5, 3
X, CHANNELS = tensor(B, C, H, W), tensor(C, 1, 1)


def standardize(x, axes):
    d = op.subtract(x, op.mean(x, axes, keepdims=True))
    return op.divide(d, op.sqrt(op.add(op.variance(x, axes, keepdims=True), const(EPS))))


def grouped(x, parted=(B, G, -1), axes=(2,)):
    shape = [B * C * H * W // -np.prod(parted) if e == -1 else e for e in parted]
    return op.reshape(standardize(op.reshape(x, shape), list(axes)), (B, C, H, W))


def affine(x, g, b):
    return op.add(op.multiply(x, g), b)


def group_norm(x, g, b, groups=G):
    g, b = (op.reshape(v, (C,)) for v in (g, b))
    return op.nn.group_norm(x, g, b, groups, 1, [2, 3], EPS)


def instance_norm(x, g, b):
    g, b = (op.reshape(v, (C,)) for v in (g, b))
    return op.nn.instance_norm(x, g, b, 1, [2, 3], EPS)


PARTED = [
    ((B, G, C // G * H * W), (2,)),
    ((B, G, C // G, H, W), (2, 3, 4)),
    ((B * G, C // G * H * W), (1,)),
    ((1, B * G, C // G, H * W), (2, 3)),
]


@pytest.mark.parametrize(("parted", "axes"), PARTED)
def test_group_norm(parted, axes):
    check(lambda x, g, b: affine(grouped(x, parted, axes), g, b), group_norm, X, CHANNELS, CHANNELS)


def test_scale_and_shift_before_the_reshape_back():
    part = tensor(G, C // G, 1, 1)

    def write(x, g, b):
        inside = standardize(op.reshape(x, (B, G, C // G, H, W)), [2, 3, 4])
        return op.reshape(affine(inside, g, b), (B, C, H, W))

    def expected(x, g, b):
        g, b = (op.reshape(op.reshape(v, (G, C // G)), (C,)) for v in (g, b))
        return op.nn.group_norm(x, g, b, G, 1, [2, 3], EPS)

    check(write, expected, X, part, part)


def test_without_scale_and_shift():
    ones, zeros = (relax.const(np.full(C, v, "float32")) for v in (1.0, 0.0))

    def expected(x):
        return op.nn.group_norm(x, ones, zeros, G, 1, [2, 3], EPS, center=False, scale=False)

    check(grouped, expected, X)


def test_half_type_with_float32_inside():
    half = tensor(B, C, H, W, dtype="float16")

    def write(x, g, b):
        return op.astype(affine(grouped(op.astype(x, "float32")), g, b), "float16")

    def expected(x, g, b):
        return op.astype(group_norm(op.astype(x, "float32"), g, b), "float16")

    check(write, expected, half, CHANNELS, CHANNELS)


def test_as_many_groups_as_channels_are_instance_norm():
    def write(x, g, b):
        return affine(grouped(x, (B, C, H * W)), g, b)

    check(write, instance_norm, X, CHANNELS, CHANNELS)


def test_instance_norm():
    def write(x, g, b):
        return affine(standardize(x, [2, 3]), g, b)

    check(write, instance_norm, X, CHANNELS, CHANNELS)


def test_symbolic_positions():
    from tests.rewrite.recompose.written import N

    def write(x, g, b):
        inside = standardize(op.reshape(x, (B, G, C // G * N)), [2])
        return affine(op.reshape(inside, (B, C, N)), g, b)

    def expected(x, g, b):
        g, b = (op.reshape(v, (C,)) for v in (g, b))
        return op.nn.group_norm(x, g, b, G, 1, [2], EPS)

    check(write, expected, tensor(B, C, N), tensor(C, 1), tensor(C, 1))


def kinds(log):
    return [d.consumer for d in log if d.verdict == "accepted"]


def test_scale_of_every_position_is_none_of_a_group_norm():
    def write(x, g):
        return op.multiply(grouped(x), g)

    def expected(x, g):
        ones, zeros = (relax.const(np.full(C, v, "float32")) for v in (1.0, 0.0))
        norm = op.nn.group_norm(x, ones, zeros, G, 1, [2, 3], EPS, center=False, scale=False)
        return op.multiply(norm, g)

    check(write, expected, X, tensor(H, W))


def test_rows_that_are_no_groups_of_channels():
    def write(x):
        parted = op.reshape(x, (B, 5, C * H * W // 5))  # 6 channels are not 5 groups
        return op.reshape(standardize(parted, [2]), (B, C, H, W))

    log = check_stays(write, X, without=("layer_norm",))
    assert any("not groups of channels" in d.sentence for d in log)


def test_means_over_the_groups_are_none():
    def write(x):
        parted = op.reshape(x, (B, G, C // G * H * W))
        return op.reshape(standardize(parted, [1]), (B, C, H, W))

    check_stays(write, X, without=("layer_norm",))
