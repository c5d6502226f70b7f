"""Casts from and to float8 on a CPU, against ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te

from tvm_fusion.device import parse

FLOATS = ["float8_e4m3fn", "float8_e5m2"]


def cast(array, dtype):
    """Cast by a kernel of this package's pipeline for TensorIR."""
    x = te.placeholder(array.shape, str(array.dtype), "x")
    func = te.create_prim_func([x, te.compute(array.shape, lambda i: x[i].astype(dtype), "y")])
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tvm.compile(mod, parse("cpu").tvm_target(), tir_pipeline="tvm_fusion")
    result = tvm.runtime.empty(array.shape, dtype)
    built["main"](tvm.runtime.tensor(array), result)
    return result.numpy()


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_code_is_decoded(dtype):
    codes = np.arange(256, dtype="uint8").view(dtype)
    np.testing.assert_array_equal(cast(codes, "float32"), codes.astype("float32"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_are_rounded_to_even(dtype):
    """Numbers between neighbours of the type, in the middle, and next to it."""
    codes = np.arange(256, dtype="uint8").view(dtype).astype("float32")
    known = np.sort(codes[np.isfinite(codes)])
    middle = (known[1:] + known[:-1]) / 2
    drawn = np.random.default_rng().uniform(known.min(), known.max(), 500)
    x = np.concatenate([middle, np.nextafter(middle, 0), known, drawn, [np.nan]]).astype("float32")
    expected = x.astype(getattr(ml_dtypes, dtype))
    np.testing.assert_array_equal(cast(x, dtype).view("uint8"), expected.view("uint8"))


@pytest.mark.parametrize(("dtype", "most"), [("float8_e4m3fn", 448), ("float8_e5m2", np.inf)])
def test_numbers_beyond_the_largest(dtype, most):
    x = np.array([1e9, -np.inf], "float32")
    np.testing.assert_array_equal(cast(x, dtype).astype("float32"), [most, -most])
