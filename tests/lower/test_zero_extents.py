"""Extents of allocated buffers that divide by a symbolic extent, which is zero at run time."""

import numpy as np
import tvm
from tvm.script import tirx as T

from tvm_fusion.device import parse
from tvm_fusion.lower.empty_loops import DivideByNoZeroExtent


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
