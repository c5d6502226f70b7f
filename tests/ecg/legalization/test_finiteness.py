"""Tests for NaN and infinity, in every float type."""

import ml_dtypes  # noqa: F401  # numpy's bfloat16
import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse

TESTS = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}


def compiled(name, dtype, pipeline):
    x = relax.Var("x", relax.TensorType((67,), dtype))
    target = parse("cpu").tvm_target()
    tir = "tvm_fusion" if pipeline == "tvm_fusion" else "default"
    return tvm.compile(
        main_module([x], getattr(relax.op, name)(x)),
        target,
        relax_pipeline=pipeline,
        tir_pipeline=tir,
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", TESTS)
def test_as_numpy_does(name, dtype):
    x = np.random.default_rng().normal(size=67).astype(dtype)
    x[[3, 17, 40]] = np.nan, np.inf, -np.inf
    machine = relax.VirtualMachine(compiled(name, dtype, "tvm_fusion"), tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(result, TESTS[name](x.astype("float64")))


@pytest.mark.parametrize("name", TESTS)
def test_stock_refuses_bfloat16(name):
    with pytest.raises(RuntimeError, match="not supported"):
        compiled(name, "bfloat16", "default")
