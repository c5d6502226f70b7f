"""Flat indices: what TVM makes of shifted divisions, and that kernels are built without."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, sym, tirx
from tvm.ir import Range
from tvm.script import tirx as T

from tvm_fusion.core.tir.loops import find
from tvm_fusion.device import parse
from tvm_fusion.lower.flatten import FlattenRightly, contiguous

N = 42


@T.prim_func(s_tir=True)
def shifted(a: T.Buffer((5, 3), "float32"), out: T.Buffer((N,), "float32")):
    for i in range(N):
        out[i] = a[(i // 6 + 3) % 5, (i % 6 + 2) % 3]


@T.prim_func(s_tir=True)
def below_zero(a: T.Buffer((20, 3), "float32"), out: T.Buffer((N,), "float32")):
    for i in range(N):
        out[i] = a[(i - 5) // 4 + 3, (i - 25) % 3]


@T.prim_func(s_tir=True)
def nested(a: T.Buffer((7,), "float32"), out: T.Buffer((N,), "float32")):
    for i in range(N):
        out[i] = a[i % 16 % 7]


@T.prim_func(s_tir=True)
def aligned(a: T.Buffer((7, 6), "float32"), out: T.Buffer((N,), "float32")):
    for i in range(N):
        out[i] = a[(i + 12) // 6 - 2, (i * 3 + 36) % 36 // 3 % 6]


POSITIONS = {
    shifted: lambda i: ((i // 6 + 3) % 5, (i % 6 + 2) % 3),
    below_zero: lambda i: ((i - 5) // 4 + 3, (i - 25) % 3),
    nested: lambda i: (i % 16 % 7,),
    aligned: lambda i: ((i + 12) // 6 - 2, (i * 3 + 36) % 36 // 3 % 6),
}


@pytest.mark.parametrize("func", POSITIONS, ids=lambda func: func.__name__)
def test_kernels_read_the_right_elements(func):
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    target = parse("cpu").tvm_target()
    built = tvm.compile(mod, target, tir_pipeline="tvm_fusion")
    shape = [int(extent) for extent in func.params[0].shape]
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    out = tvm.runtime.tensor(np.zeros(N, "float32"))
    built["main"](tvm.runtime.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), x[POSITIONS[func](np.arange(N))])


def test_aligned_divisions_are_simplified_as_ever():
    mod = tvm.IRModule({"main": aligned})
    tvm.ir.assert_structural_equal(
        FlattenRightly()(mod), tirx.transform.FlattenBuffer()(mod), map_free_vars=True
    )


SYMBOLS = i, m, n = [tirx.Var(name, "int64") for name in "imn"]
ROW, COLUMN = tirx.floordiv(i, m), tirx.floormod(i, m)


@pytest.mark.parametrize(
    "index",
    [
        ((ROW - 1) * m + COLUMN) * n + 3,
        (tirx.floordiv(ROW, n) * n + tirx.floormod(ROW, n) + 5) * m + COLUMN,
        ROW * m * 2 + COLUMN * 2 + tirx.floordiv(i, n),
    ],
    ids=["shifted", "three axes", "with another quotient"],
)
def test_symbolic_quotients_cancel(index):
    found = contiguous(index)
    assert "%" not in str(found)
    assert f"{i.name} // {m.name}" not in str(found)
    for values in ([1234, 7, 11], [40, 1, 3], [5, 9, 2]):
        assert at(found, values) == at(index, values)


def at(index, values):
    numbers = {v: tirx.IntImm("int64", n) for v, n in zip(SYMBOLS, values, strict=True)}
    replaced = tvm_ffi.structural_map(index, (ir.Var, lambda v: numbers.get(v, v)))
    return int(sym.Analyzer().simplify(replaced))


def test_quotients_that_do_not_cancel_stay():
    for index in (
        tirx.floormod(i, m),
        tirx.floordiv(i, n) * m + tirx.floormod(i, m),
        tirx.floordiv(i, m) * n + tirx.floormod(i, m),
    ):
        assert contiguous(index).same_as(index)


def test_tvm_still_takes_one_shift_for_all():
    """Fails when TVM simplifies these rightly: then indices may be flattened as they are."""
    i = tirx.Var("i", "int64")
    index = tirx.floormod(i + 10, 5) + tirx.floormod(i + 13, 5)
    found = sym.iter_map_simplify([index], {i: Range(0, N)})[0]
    tvm.ir.assert_structural_equal(found, tirx.floormod(i + 3, 5) * tirx.IntImm("int64", 2))


def test_hidden_divisions_leave_contiguous_vectors():
    """CUDA has no vector of a quotient and a remainder that are not one index again."""
    i, m = tirx.Var("i", "int64"), tirx.Var("m", "int64")
    start = (i - tirx.floordiv(m + 127, tirx.const(128, "int64"))) * 2048
    index = tirx.floordiv(start, tirx.const(14, "int64")) * 14
    index = index + tirx.floormod(start, tirx.const(14, "int64"))
    found = contiguous(index)
    assert not find(found, tirx.FloorMod)
    tvm.ir.assert_structural_equal(sym.Analyzer().simplify(found - start), tirx.const(0, "int64"))


@pytest.mark.parametrize("shift", [8192, 8191])
def test_quotients_of_several_divisors_cancel_together(shift):
    i, k, _ = SYMBOLS
    number = [tirx.const(x, "int64") for x in (14, 196, shift, 114688)]
    side, size, rows, elements = number
    row = tirx.floormod(k * rows + tirx.floordiv(i, side), side)
    whole = tirx.floordiv(k * elements + i, size) * size
    index = whole + row * side + tirx.floormod(i, side)
    found = contiguous(index)
    assert (shift == 8191) == found.same_as(index) == bool(find(found, tirx.FloorMod))
    for values in ([1234, 7, 1], [-40, 1, 1], [5, -9, 1]):
        assert at(found, values) == at(index, values)
