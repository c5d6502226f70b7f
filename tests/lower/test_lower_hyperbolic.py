"""Hyperbolic functions in kernels that came lowered: vectors of them."""

import numpy as np
import pytest
import tvm
from tvm.ir.transform import Sequential
from tvm.script import tirx as T

from tvm_fusion.device import parse
from tvm_fusion.lower.float_math import HyperbolicByExponentials


@T.prim_func(s_tir=True)
def vectorized(
    a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32"), c: T.Buffer((8,), "float32")
):
    for i in T.vectorized(8):
        b[i] = T.sinh(a[i] * T.float32(2))
    for i in T.vectorized(8):
        c[i] = T.cosh(a[i])


@T.prim_func(s_tir=True)
def of_halves(a: T.Buffer((8,), "float16"), b: T.Buffer((8,), "float16")):
    for i in range(8):
        b[i] = T.sinh(T.exp(a[i]))


def module(func):
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def build(mod):
    return tvm.tirx.build(mod, target=parse("cpu").tvm_target())


def test_vectors_of_them_compile():
    executable = build(Sequential([HyperbolicByExponentials()])(module(vectorized)))
    a = np.array([0, -1e-6, 1e-3, -0.3, 0.49, 1.5, -17, 44], "float32")
    b, c = (tvm.runtime.empty((8,), "float32") for _ in range(2))
    executable["main"](tvm.runtime.tensor(a), b, c)
    np.testing.assert_allclose(b.numpy(), np.sinh(2 * a.astype("float64")), rtol=1e-6)
    np.testing.assert_allclose(c.numpy(), np.cosh(a.astype("float64")), rtol=1e-6)


def test_other_types_stay():
    before = module(of_halves)
    assert Sequential([HyperbolicByExponentials()])(before)["main"].same_as(before["main"])


def test_tvm_still_cannot_compile_vectors_of_them():
    """Fails when TVM can: then HyperbolicByExponentials can go."""
    with pytest.raises(tvm.error.InternalError, match="unknown intrinsic"):
        build(module(vectorized))
