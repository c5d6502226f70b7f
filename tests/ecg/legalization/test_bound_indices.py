"""Indices that are data are bounded, whichever operator they belong to; all others stay."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx
from tvm.script import tirx as T

from tvm_fusion.core.untouched import SCHEDULED
from tvm_fusion.ecg.legalization.bound_indices import IN_RANGE, BoundIndices, bound_indices
from tvm_fusion.ecg.legalization.legalize import Legalize


@T.prim_func(private=True, s_tir=True)
def gather(
    x: T.Buffer((T.int64(5), T.int64(3)), "float32"),
    i: T.Buffer((T.int64(7),), "int64"),
    y: T.Buffer((T.int64(7), T.int64(3)), "float32"),
):
    for a, b in T.grid(T.int64(7), T.int64(3)):
        with T.sblock("y"):
            va, vb = T.axis.remap("SS", [a, b])
            y[va, vb] = x[i[va], vb]


@T.prim_func(private=True, s_tir=True)
def gathered(
    x: T.Buffer((T.int64(5), T.int64(3)), "float32"),
    i: T.Buffer((T.int64(7),), "int64"),
    y: T.Buffer((T.int64(7), T.int64(3)), "float32"),
):
    for a, b in T.grid(T.int64(7), T.int64(3)):
        with T.sblock("y"):
            va, vb = T.axis.remap("SS", [a, b])
            y[va, vb] = x[T.max(T.min(i[va], T.int64(4)), T.int64(0)), vb]


@T.prim_func(private=True, s_tir=True)
def scatter(
    i: T.Buffer((T.int64(7),), "int64"),
    u: T.Buffer((T.int64(7), T.int64(8)), "float32"),
    y: T.Buffer((T.int64(5), T.int64(8)), "float32"),
):
    with T.sblock("y"):
        T.reads()
        T.writes()
        for a in range(T.int64(7)):
            for b in T.vectorized(T.int64(8)):
                y[i[a], b] = u[a, b]


@T.prim_func(private=True, s_tir=True)
def scattered(
    i: T.Buffer((T.int64(7),), "int64"),
    u: T.Buffer((T.int64(7), T.int64(8)), "float32"),
    y: T.Buffer((T.int64(5), T.int64(8)), "float32"),
):
    with T.sblock("y"):
        T.reads()
        T.writes()
        for a in range(T.int64(7)):
            if i[a] >= T.int64(0) and i[a] < T.int64(5):
                for b in T.vectorized(T.int64(8)):
                    y[i[a], b] = u[a, b]


@T.prim_func(private=True, s_tir=True)
def ranges(
    x: T.Buffer((T.int64(9),), "float32"),
    begin: T.Buffer((T.int64(4),), "int32"),
    y: T.Buffer((T.int64(3),), "float32"),
):
    with T.sblock("y"):
        T.reads()
        T.writes()
        for a in range(T.int64(3)):
            y[a] = T.float32(0)
            for j in range(begin[a + T.int64(1)] - begin[a]):
                y[a] = y[a] + x[j]


@pytest.mark.parametrize(("before", "after"), [(gather, gathered), (scatter, scattered)])
def test_reads_are_clamped_and_writes_left_out(before, after):
    mod = BoundIndices()(tvm.IRModule({"main": before}))
    tvm.ir.assert_structural_equal(mod["main"], after.with_attr(IN_RANGE, True))
    assert bound_indices(mod["main"]).same_as(mod["main"])


def test_what_provably_is_in_range_stays():
    assert bound_indices(gathered).same_as(gathered)


def test_a_clipped_index_of_a_symbolic_axis_stays():
    extent = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([extent, 3], "float32"))
    i = relax.Var("i", relax.TensorType([7], "int64"))
    with tvm.target.Target("llvm"):
        mod = Legalize()(main_module([x, i], relax.op.take(x, i, axis=0, mode="clip")))
    (kernel,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert IN_RANGE not in kernel.attrs
    assert bound_indices(kernel).same_as(kernel)


def test_a_loop_over_a_range_that_is_read_gives_bounded_indices():
    text = bound_indices(ranges).script()
    assert "x[T.max(T.min(j, 8), 0)]" in text
    assert "range(T.min(begin[a + T.int64(1)] - begin[a], 9))" in text.replace("T.int32(9)", "9")
    assert "y[a]" in text  # not an index that is data


@pytest.mark.parametrize("attr", [IN_RANGE, SCHEDULED])
def test_kernels_that_answer_for_their_indices_stay(attr):
    mod = tvm.IRModule({"main": gather.with_attr(attr, True)})
    assert BoundIndices()(mod)["main"].same_as(mod["main"])


def test_a_table_of_no_rows_is_not_read():
    @T.prim_func(private=True, s_tir=True)
    def empty(
        x: T.Buffer((T.int64(0),), "float32"),
        i: T.Buffer((T.int64(7),), "int64"),
        y: T.Buffer((T.int64(7),), "float32"),
    ):
        for a in range(T.int64(7)):
            with T.sblock("y"):
                va = T.axis.spatial(T.int64(7), a)
                y[va] = x[i[va]]

    assert "x[" not in bound_indices(empty).script().split('sblock("y")')[1].split("T.writes")[1]


def test_bounded_kernels_are_right_in_range():
    rng = np.random.default_rng()
    kernel = bound_indices(scatter).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": kernel}), "llvm")
    i, u = rng.permutation(7).astype("int64") - 1, rng.random((7, 8), dtype="float32")
    y = tvm.runtime.tensor(np.zeros((5, 8), "float32"))
    built(tvm.runtime.tensor(i), tvm.runtime.tensor(u), y)
    wanted = np.zeros((5, 8), "float32")
    for row, update in zip(i, u, strict=True):
        if 0 <= row < 5:
            wanted[row] = update
    np.testing.assert_array_equal(y.numpy(), wanted)
