"""Index maps between tensors of the graph and blocked or channels-last tensors."""

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.layout.laid_out import pack
from tvm_fusion.program.layouts import Layout, is_layout_map, read_map, write_map


def extents(*shape):
    return [tirx.Var(d, "int64") if isinstance(d, str) else tirx.IntImm("int64", d) for d in shape]


def built(func):
    return tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")


@pytest.mark.parametrize(
    ("layout", "shape", "name"),
    [
        (Layout(16), (2, 32, 5, 7), "NCHW16c"),
        (Layout(16), (1, 21, 3, 5), "NCHW16c"),
        (Layout(8), (2, 3, 9), "NCW8c"),
        (Layout(0), (2, 21, 3, 5), "NHWC"),
        (Layout(0), (1, 6, 2, 3, 4), "NDHWC"),
    ],
)
def test_maps_move_every_element(layout, shape, name):
    x = np.random.default_rng(5).standard_normal(shape).astype("float32")
    assert layout.name(len(shape)) == name
    stored = [int(d) for d in layout.shape(extents(*shape))]
    there = tvm.runtime.tensor(np.full(stored, np.nan, "float32"))
    back = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    built(write_map(extents(*shape), "float32", layout))(tvm.runtime.tensor(x), there)
    built(read_map(extents(*shape), "float32", layout))(there, back)
    np.testing.assert_array_equal(back.numpy(), x)
    assert not np.isnan(there.numpy()).any()
    assert np.count_nonzero(there.numpy()) == x.size  # padding is zero
    if len(shape) == 4:
        np.testing.assert_array_equal(there.numpy(), pack(x, layout))


def test_equal_shapes_share_a_function_whatever_their_symbols():
    first, second = extents("n", 32, "h", "w"), extents("batch", 32, 7, "h")
    layout = Layout(16)
    assert read_map(first, "float32", layout) is read_map(
        extents("m", 32, "a", "b"), "float32", layout
    )
    assert read_map(first, "float32", layout) is not read_map(second, "float32", layout)
    assert is_layout_map(write_map(first, "float16", layout))
    assert not is_layout_map(None)
