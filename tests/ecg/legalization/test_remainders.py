"""Floored quotients and remainders of floating point numbers."""

import ml_dtypes  # noqa: F401  # numpy's bfloat16
import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse

FUNCTIONS = {"floor_mod": np.mod, "floor_divide": np.floor_divide}


def run(name, x, y, pipeline="tvm_fusion"):
    a, b = (relax.Var(n, relax.TensorType(v.shape, str(v.dtype))) for n, v in (("a", x), ("b", y)))
    target = parse("cpu").tvm_target()
    executable = tvm.compile(
        main_module([a, b], getattr(relax.op, name)(a, b)),
        target,
        relax_pipeline=pipeline,
        tir_pipeline=pipeline,
    )
    inputs = map(tvm.runtime.tensor, (x, y))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*inputs).numpy()


def pairs(dtype):
    rng = np.random.default_rng()
    x = rng.normal(size=(31, 1)) * 10 ** rng.uniform(-2, 4, (31, 1))
    y = rng.normal(size=(29,)) * 10 ** rng.uniform(-2, 4, (29,))
    x.flat[:8] = 0, -0.0, 6, -6, 20, np.nan, np.inf, -np.inf
    y[:8] = 3, -3, 0.001, 0, -0.0, np.nan, np.inf, -np.inf
    return x.astype(dtype), y.astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_numpy_does(name, dtype):
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        right = FUNCTIONS[name](x.astype("float64"), y.astype("float64")).astype(dtype)
    # A sum of remainder and divisor rounds, and so does a quotient beyond the type's integers.
    rtol = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 1e-6, "float64": 1e-15}[dtype]
    found = run(name, x, y)
    assert found.dtype == right.dtype
    np.testing.assert_allclose(found.astype("float64"), right.astype("float64"), rtol, 0)
    if name == "floor_divide":  # a remainder of 0 has the sign of the dividend, unlike numpy's
        zero = right == 0
        np.testing.assert_array_equal(np.signbit(found)[zero], np.signbit(right)[zero])


def test_stock_leaves_what_is_no_remainder():
    """Fails where TVM's remainder is right: then perhaps it needs no other form.

    In float32, which the instructions of every CPU compute alike; in float16 some round in between
    and others do not.
    """
    x, y = np.float32([1e10]), np.float32([-3])
    assert run("floor_mod", x, y)[0] == np.mod(x, y)[0]
    assert run("floor_mod", x, y, "default")[0] != np.mod(x, y)[0]
