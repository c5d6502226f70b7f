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


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint64"])
def test_it_has_its_operands_type_whose_range_the_sum_may_leave(dtype):
    info = np.iinfo(dtype)
    data = np.tile(np.array([info.max // 2, info.max // 2 + 1, info.min], dtype), (2, 50))
    data[1] //= np.dtype(dtype).type(3)
    found = compiled([tensor("x", 2, 150, dtype=dtype)], lambda x: relax.op.mean(x, [1]))(data)
    assert found.dtype == data.dtype
    exact = np.array([sum(map(int, row)) / 150 for row in data])
    np.testing.assert_allclose(found, np.trunc(exact), rtol=2**-46 if info.bits == 64 else 0)
