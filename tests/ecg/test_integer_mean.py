"""Means of integers over an extent that is known at run time, and may be zero there."""

import numpy as np
import pytest
import tvm
from group_kernels import tensor
from tvm import relax, tirx

from tvm_fusion.device import parse

n = tirx.Var("n", "int64")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("axis", [None, [0]])
def test_the_mean_is_truncated_and_zero_over_nothing(axis, dtype):
    x = tensor("x", n, 5, dtype=dtype)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.mean(x, axis))
        builder.emit_func_output(y)
    target = parse("cpu").tvm_target()
    with target:
        executable = tvm.compile(
            builder.get(), target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
        )
    machine = relax.VirtualMachine(executable, tvm.cpu())
    rng = np.random.default_rng(0)
    for length in (7, 0):
        data = rng.integers(-90, 90, (length, 5)).astype(dtype)
        total = data.sum(None if axis is None else 0)
        expected = np.trunc(total / max(1, data.size // total.size)).astype(dtype)
        found = machine["main"](tvm.runtime.tensor(data)).numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
