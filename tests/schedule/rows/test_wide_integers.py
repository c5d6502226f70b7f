"""Extrema of bytes: reduced by shuffles of words, exact at both ends of a type."""

import numpy as np
import pytest
from group_kernels import CUDA, arrays, cuda_kernel, emitted, run, tensor
from tvm import relax

from tvm_fusion.schedule.rows.template import Rows

op = relax.op


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_of_rows(name, dtype):
    params = [tensor("x", 5, 131, dtype=dtype)]
    made = emitted(Rows(), params, lambda emit, x: [emit(getattr(op, name)(x, -1))], CUDA)
    text = cuda_kernel(made.func)
    assert "__shfl" in text
    assert "volatile" not in text
    limits = np.iinfo(dtype)
    x = np.random.default_rng().integers(limits.min, limits.max, (5, 131), endpoint=True)
    x[0], x[1, 130], x[2] = limits.min, limits.max, limits.max
    x = x.astype(dtype)
    (found,) = run(made.func, made.members, {"x": x}, CUDA, 1)
    np.testing.assert_array_equal(found, getattr(x, name)(-1))


def test_what_reads_them_has_their_type():
    """The sum of two bytes wraps around, as it does without."""

    def body(emit, x):
        return [emit(op.add(x, emit(op.max(x, -1, keepdims=True))))]

    params = [tensor("x", 3, 70, dtype="int8")]
    made = emitted(Rows(), params, body, CUDA)
    x = arrays(params)["x"]
    x[1] = 127
    (found,) = run(made.func, made.members, {"x": x}, CUDA, 1)
    np.testing.assert_array_equal(found, x + x.max(-1, keepdims=True))
