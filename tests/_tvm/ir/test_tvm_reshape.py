"""TVM's bug of large tensors in its analysis of reshapes, and the way around it."""

import pytest
from tvm import relax, te

from tvm_fusion._tvm.ir.reshape import is_reshape


def flattened(rows):
    x = te.placeholder((rows, 4096), "float16", "x")
    y = te.compute((rows * 4096,), lambda i: x[i // 4096, i % 4096], "y")
    return te.create_prim_func([x, y])


def test_a_reshape_of_any_size_is_asked_for():
    assert is_reshape(flattened(16))
    assert not is_reshape(flattened(1 << 19))


def test_tvm_counts_in_int32():
    """Fails when TVM's bug is gone: then the handler of ValueError goes."""
    with pytest.raises(ValueError, match="exceeds range of int32"):
        relax.analysis.has_reshape_pattern(flattened(1 << 19))
