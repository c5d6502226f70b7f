"""Means of integers, also over an extent that is known at run time, and may be zero there."""

import numpy as np
import pytest
from cpu_programs import compiled
from group_kernels import tensor
from tvm import relax, tirx

n = tirx.Var("n", "int64")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("axis", [None, [0]])
def test_the_mean_is_truncated_and_zero_over_nothing(axis, dtype):
    x = tensor("x", n, 5, dtype=dtype)
    run = compiled([x], lambda x: relax.op.mean(x, axis))
    rng = np.random.default_rng(0)
    for length in (7, 0):
        data = rng.integers(-90, 90, (length, 5)).astype(dtype)
        total = data.sum(None if axis is None else 0)
        expected = np.trunc(total / max(1, data.size // total.size)).astype(dtype)
        found = run(data)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64"])
def test_it_has_the_type_of_its_operand(dtype):
    data = np.arange(300).reshape(2, 150).astype("uint8").astype(dtype) // np.dtype(dtype).type(50)
    found = compiled([tensor("x", 2, 150, dtype=dtype)], lambda x: relax.op.mean(x, [1]))(data)
    assert found.dtype == data.dtype
    total = data.sum(1, dtype=dtype).astype("int64")  # it wraps around
    np.testing.assert_array_equal(found, np.trunc(total / 150).astype(dtype))
