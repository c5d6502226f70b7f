"""Divisions by symbolic extents: of unknown sign to TVM, or zero at run time."""

import numpy as np
import tvm
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_fusion
from tvm_fusion.device import parse
from tvm_fusion.lower.integers import DivideByNoZeroExtent, DivideByPositive


@T.prim_func(s_tir=True)
def doubled(x: T.handle, y: T.handle):
    n = T.int64()
    a = T.match_buffer(x, (11, n), "float32")
    b = T.match_buffer(y, (11, n), "float32")
    with T.sblock("root"):
        kept = T.sblock_alloc_buffer((11 * n // n, n), "float32")
        for i, j in T.grid(T.int64(11), n):
            kept[i, j] = a[i, j]
        for i, j in T.grid(T.int64(11), n):
            b[i, j] = kept[i, j] * T.float32(2)


def test_no_elements_and_some():
    func = doubled.with_attrs({"global_symbol": "main", "tirx.is_scheduled": True})
    mod, target = tvm.IRModule({"main": func}), parse("cpu").tvm_target()
    kernel = tvm.tirx.build(mod, target, pipeline="tvm_fusion")
    for n in (0, 1, 7):
        x = np.random.default_rng().normal(size=(11, n)).astype("float32")
        y = tvm.runtime.tensor(np.zeros_like(x))
        kernel["main"](tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), x * 2)


def test_divides_by_at_least_one():
    @T.prim_func(s_tir=True)
    def before(n: T.int64):
        kept = T.alloc_buffer((n * T.int64(11) // n,), "float32")
        kept[n * T.int64(3) // n] = T.float32(0)

    @T.prim_func(s_tir=True)
    def after(n: T.int64):
        kept = T.alloc_buffer((n * T.int64(11) // T.max(n, T.int64(1)),), "float32")
        kept[n * T.int64(3) // n] = T.float32(0)

    got = DivideByNoZeroExtent()(tvm.IRModule({"main": before}))
    tvm.ir.assert_structural_equal(got["main"], after.with_attr("global_symbol", "before"))


@R.function
def same_sides(
    x: R.Tensor((2, 3, "n", "n"), "float32"), w: R.Tensor((4, 3, 3, 3), "float32")
) -> R.Tensor((2, 4), "float32"):
    with R.dataflow():
        y = R.mean(R.nn.relu(R.nn.conv2d(x, w, padding=1)), axis=[2, 3])
        R.output(y)
    return y


def test_an_image_of_equal_symbolic_sides(plain_llvm):
    mod = tvm.IRModule({"main": same_sides})
    exe = tvm_fusion.load(tvm_fusion.compile(mod, dims={"n": tvm_fusion.DimRange(1, 64)}))
    rng = np.random.default_rng()
    w = rng.normal(size=(4, 3, 3, 3)).astype("float32")
    for n in (1, 19):
        x = rng.normal(size=(2, 3, n, n)).astype("float32")
        padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]).astype("float64")
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        y = np.einsum("bcyxij,ocij->boyx", windows, w.astype("float64"))
        (actual,) = exe(x, w).values()
        np.testing.assert_allclose(actual, np.maximum(y, 0).mean((2, 3)), rtol=1e-4, atol=1e-5)


def test_only_divisors_of_a_variable_that_divides_become_maxima():
    @T.prim_func(s_tir=True)
    def before(a: T.Buffer((64,), "int64"), n: T.int64, m: T.int64):
        for i in range(n):
            a[i % 64] = i // ((n + T.int64(7)) // T.int64(8)) % n + i // (m + T.int64(1))

    @T.prim_func(s_tir=True)
    def after(a: T.Buffer((64,), "int64"), n: T.int64, m: T.int64):
        for i in range(n):
            a[i % 64] = i // T.max((n + T.int64(7)) // T.int64(8), T.int64(1)) % n + i // (
                m + T.int64(1)
            )

    got = DivideByPositive()(tvm.IRModule({"main": before}))
    tvm.ir.assert_structural_equal(got["main"], after.with_attr("global_symbol", "before"))


def test_quotients_of_numbers_keep_divisors_below_one():
    @T.prim_func(s_tir=True)
    def scaled(x: T.handle, y: T.handle):
        h, p = T.int64(), T.int64()
        T.match_buffer(x, (h,), "float32")
        b = T.match_buffer(y, (2, p), "float32")
        for task in range(p * T.int64(2)):
            b[task // p, task % p] = T.float32(1) / (T.Cast("float32", p) / T.Cast("float32", h))

    mod = tvm.IRModule({"main": scaled})
    tvm.ir.assert_structural_equal(DivideByPositive()(mod), mod)
