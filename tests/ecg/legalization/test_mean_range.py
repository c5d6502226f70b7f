"""Means of bfloat16 at the limits of float32, against float64."""

import ml_dtypes
import numpy as np
import pytest
from cpu_programs import compiled
from group_kernels import tensor
from tvm import relax, tirx

OP = relax.op
MEANS = {
    "mean": (lambda x: OP.mean(x, [3]), lambda x: x.mean(3)),
    "pool": (
        lambda x: OP.nn.avg_pool2d(x, (1, 2), (1, 2)),
        lambda x: x.reshape(1, 2, 3, 4, 2).mean(4),
    ),
    "adaptive": (
        lambda x: OP.nn.adaptive_avg_pool2d(x, (3, 1)),
        lambda x: x.mean(3, keepdims=True),
    ),
}
SIZES = (3e38, 1.0, 1e-36)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MEANS)
def test_the_sum_is_not_rounded_away(name, size):
    build, exact = MEANS[name]
    x = np.random.default_rng().choice([1.0, 0.75, 0.5], (1, 2, 3, 8)) * size
    x = x.astype(ml_dtypes.bfloat16)
    found = compiled([tensor("x", *x.shape, dtype="bfloat16")], build)(x).astype(float)
    np.testing.assert_allclose(found, exact(x.astype(float)), rtol=2**-8)


def test_a_variance_is_infinite_rather_than_no_number():
    x = np.array([[3e38, 3e38, 1e38], [1e-18, 3e-18, 2e-18]]).astype(ml_dtypes.bfloat16)
    found = compiled([tensor("x", 2, 3, dtype="bfloat16")], lambda x: OP.variance(x, [1]))(x)
    assert found[0] == np.inf
    np.testing.assert_allclose(found[1].astype(float), 2e-36 / 3, rtol=2**-4)


def test_over_a_symbolic_extent():
    n = tirx.Var("n", "int64")
    x = np.full((5, 4), 3e38).astype(ml_dtypes.bfloat16)
    found = compiled([tensor("x", n, 4, dtype="bfloat16")], lambda x: OP.mean(x, [0]))(x)
    np.testing.assert_allclose(found.astype(float), 3e38, rtol=2**-8)
