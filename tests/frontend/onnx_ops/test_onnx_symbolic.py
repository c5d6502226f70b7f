"""Shapes as exporters compute them, over ranges: right in a process without the compiler."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

import tvm_fusion
from tvm_fusion import DimRange
from tvm_fusion.config import FusionConfig
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

pytestmark = pytest.mark.slow_beyond(2)

HEAD = '<ir_version: 8, opset_import: ["": {}]>\n'
LOAD = """
import json, pathlib, sys
import numpy as np
import tvm_fusion
for folder in sys.argv[1:]:
    exe = tvm_fusion.load(pathlib.Path(folder) / "artifact")
    for given in sorted(pathlib.Path(folder).glob("in*.npz")):
        found = exe.run(dict(np.load(given)))
        np.savez(given.with_name(given.name.replace("in", "out")), **found)
assert "tvm" not in sys.modules
"""
# Opset, graph, ranges, sizes: what tf2onnx, torch, keras and paddle write.
GRAPHS = {
    "tf2onnx_reshape": (
        15,
        """g (float[n, 8, 4] x) => (float[a, b, c] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int32[2] k = {16, 2}> {
          s = Shape(x) s32 = Cast<to = 6>(s) b = Slice(s32, zero, one, zero)
          t = Concat<axis = 0>(b, k) t64 = Cast<to = 7>(t) y = Reshape(x, t64) }""",
        {"n": DimRange(1, 8)},
        [{"n": 1}, {"n": 3}, {"n": 8}],
    ),
    "rank_decides": (
        16,
        """g (float[n, 8] x) => (float[p, q, r] y) <int64 two = {2}, int64[1] first = {0}> {
          s = Shape(x) d = Size(s) c = Equal(d, two)
          y = If(c) <then_branch = t () => (float[p, q, r] ty) { ty = Unsqueeze(x, first) },
                     else_branch = e () => (float[p, q] ey) { ey = Identity(x) }> }""",
        {"n": DimRange(1, 8)},
        [{"n": 2}, {"n": 7}],
    ),
    "first_and_last_step": (
        15,
        """g (float[n, 2, 4] x) => (float[2, 4] y)
        <int64[1] a = {0}, int64[1] b = {1}, int64[1] m = {-1}, int64[1] far = {100000}> {
          s = Slice(x, a, b, a) f = Squeeze(s, a)
          t = Slice(x, m, far, a) l = Squeeze(t, a) y = Add(f, l) }""",
        {"n": DimRange(1, 64)},
        [{"n": 1}, {"n": 5}, {"n": 64}],
    ),
    "half_of_the_width": (
        13,
        """g (float[1, 2, h, w] x) => (float[p, q, r, s] y)
        <int64[1] two = {2}, int64[1] zero = {0}, int64[1] four = {4}, float half = {0.5},
         int64[1] axis = {0}> {
          s = Shape(x) hw = Slice(s, two, four, axis) nc = Slice(s, zero, two, axis)
          f = Cast<to = 1>(hw) g0 = Mul(f, half) g1 = Floor(g0) i = Cast<to = 7>(g1)
          sizes = Concat<axis = 0>(nc, i)
          y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
                     nearest_mode = "floor">(x, , , sizes) }""",
        {"h": DimRange(2, 32, 2), "w": DimRange(2, 32, 2)},
        [{"h": 2, "w": 8}, {"h": 32, "w": 4}],
    ),
    "tiled_by_an_extent": (
        13,
        """g (float[n, 1, 2] x, float[n, 3, 6] like) => (float[p, 3, 6] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] counts = {3, 3}> {
          s = Shape(like) n = Slice(s, zero, one) t = Concat<axis = 0>(n, counts)
          f = Slice(x, zero, one) e = Tile(f, t) y = Mul(e, like) }""",
        {"n": DimRange(1, 8)},
        [{"n": 1}, {"n": 5}],
    ),
    "padded_by_a_remainder": (
        13,
        """g (float[1, h] x) => (float[1, p] y)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] eight = {8}, int64[3] none = {0, 0, 0}> {
          s = Shape(x) h = Slice(s, one, two) n = Neg(h) m = Mod(n, eight)
          k = Concat<axis = 0>(none, m) y = Pad(x, k) }""",
        {"h": DimRange(1, 64)},
        [{"h": 8}, {"h": 21}],
    ),
    "half_of_them_sorted": (
        13,
        """g (float[n, 6] x) => (float[p, 6] y, int64[p, 6] i)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
          s = Shape(x) n = Slice(s, zero, one) m = Add(n, one) k = Div(m, two)
          y, i = TopK<axis = 0>(x, k) }""",
        {"n": DimRange(1, 8)},
        [{"n": 1}, {"n": 7}],
    ),
    "expanded_where": (
        13,
        """g (float[n, 1] x, float[n, m] like) => (float[p, q] y)
        <int64[2] minus = {-1, -1}, int64[2] ones = {1, 1}> {
          s = Shape(like) c = Equal(s, minus) t = Where(c, ones, s) e = Expand(x, t)
          y = Mul(e, like) }""",
        {"n": DimRange(1, 8), "m": DimRange(1, 8)},
        [{"n": 1, "m": 8}, {"n": 5, "m": 3}],
    ),
    "feature_pyramid": (
        13,
        "g (float[1, 3, h, w] x) => (float[p, q, r, s] y) <float[3, 3, 3, 3] w0 = {"
        + ", ".join(f"{0.01 * i:.2f}" for i in range(81))
        + """}, float[4] scales = {1, 1, 2, 2}> {
          c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(x, w0)
          u = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
                     nearest_mode = "floor">(c, , scales)
          y = Add(x, u) }""",
        {"h": DimRange(4, 64, 4), "w": DimRange(4, 64, 4)},
        [{"h": 4, "w": 8}, {"h": 64, "w": 12}],
    ),
    "same_padding": (
        11,
        "g (float[1, 2, h, w] x) => (float[p, q, r, s] y) <float[2, 2, 3, 3] w0 = {"
        + ", ".join(f"{0.1 * (i % 7):.1f}" for i in range(36))
        + """}> {
          p = MaxPool<auto_pad = "SAME_UPPER", kernel_shape = [2, 2]>(x)
          c = Conv<auto_pad = "SAME_LOWER", kernel_shape = [3, 3], strides = [2, 2]>(p, w0)
          y = AveragePool<auto_pad = "SAME_UPPER", kernel_shape = [3, 3], strides = [2, 2]>(c) }""",
        {"h": DimRange(8, 64, 8), "w": DimRange(8, 64, 4)},
        [{"h": 8, "w": 12}, {"h": 40, "w": 8}],
    ),
    "padding_that_depends": (
        11,
        "g (float[1, 1, h, w] x) => (float[p, q] y) <float[1, 1, 3, 2] w0 = {1, 2, 3, 4, 5, 6}> {"
        + """
          c = Conv<auto_pad = "SAME_LOWER", strides = [2, 3]>(x, w0)
          t = ConvTranspose<auto_pad = "SAME_UPPER", strides = [2, 2]>(c, w0)
          a = AveragePool<auto_pad = "SAME_UPPER", kernel_shape = [3, 3], strides = [2, 2]>(t)
          m = MaxPool<ceil_mode = 1, kernel_shape = [2, 4], strides = [3, 2],
                      pads = [0, 1, 0, 2]>(x)
          b = AveragePool<ceil_mode = 1, count_include_pad = 1, kernel_shape = [2, 4],
                          strides = [3, 2], pads = [0, 1, 1, 1]>(x)
          fa = Flatten(a) fm = Flatten(m) fb = Flatten(b) y = Concat<axis = 1>(fa, fm, fb) }""",
        {"h": DimRange(5, 20), "w": DimRange(5, 20)},
        [{"h": 5, "w": 8}, {"h": 7, "w": 9}, {"h": 20, "w": 19}],
    ),
    "resized_to_another": (
        13,
        """g (float[1, 2, h, w] x, float[1, 2, p, q] like) => (float[1, 2, p, q] y) {
          s = Shape(like) l = Resize<mode = "linear">(x, , , s)
          c = Resize<mode = "cubic", coordinate_transformation_mode = "align_corners">(x, , , s)
          n = Resize<mode = "nearest">(x, , , s) lc = Add(l, c) y = Add(lc, n) }""",
        {name: DimRange(1 + (name in "hw"), 20) for name in "hwpq"},
        [{"h": 3, "w": 4, "p": 7, "q": 5}, {"h": 9, "w": 2, "p": 1, "q": 20}],
    ),
    "scaled_by_no_whole_number": (
        13,
        """g (float[1, 1, h] x) => (float[1, 1, p] y) <float[3] scales = {1, 1, 1.5}> {
          y = Resize<mode = "linear">(x, , scales) }""",
        {"h": DimRange(2, 20)},
        [{"h": 3}, {"h": 8}, {"h": 20}],
    ),
    "depth_of_classes": (
        13,
        """g (int64[k] i, float[n, 2] x) => (float[k, n] y)
        <int64[1] zero = {0}, float[2] values = {0, 1}> {
          s = Shape(x) d = Gather(s, zero) y = OneHot(i, d, values) }""",
        {"n": DimRange(1, 8), "k": DimRange(1, 8)},
        [{"n": 3, "k": 5}, {"n": 8, "k": 2}],
    ),
    "padded_to_a_multiple": (
        18,
        """g (float[1, n] x) => (float[p, q] y)
        <int64 axis = {1}, int64 four = {4}, int64 three = {3}, int64[3] none = {0, 0, 0},
         int64[1] one = {1}> {
          s = Shape(x) n = Gather<axis = 0>(s, axis) a = Add(n, three) d = Div(a, four)
          m = Mul(d, four) r = Sub(m, n) r1 = Reshape(r, one) pads = Concat<axis = 0>(none, r1)
          y = Pad<mode = "reflect">(x, pads) }""",
        {"n": DimRange(5, 33)},
        [{"n": 5}, {"n": 8}, {"n": 33}],
    ),
    "two_halves": (
        18,
        """g (float[n, m] x) => (float[a, b] y, float[c, d] z)
        <int64[1] one = {1}, int64[1] two = {2}> {
          s = Shape(x) m = Slice(s, one, two) h = Div(m, two) r = Sub(m, h)
          parts = Concat<axis = 0>(h, r) y, z = Split<axis = 1>(x, parts) }""",
        {"n": DimRange(1, 8), "m": DimRange(1, 8)},
        [{"n": 1, "m": 1}, {"n": 3, "m": 7}, {"n": 8, "m": 8}],
    ),
    "positions_in_floating_point": (
        18,
        """g (float[n, 4] x) => (float[a, b] y)
        <int64 zero = {0}, float none = {0}, float step = {1}, int64[1] axis = {1}> {
          s = Shape(x) n = Gather(s, zero) f = Cast<to = 1>(n) r = Range(none, f, step)
          p = Div(r, f) c = Unsqueeze(p, axis) y = Add(x, c) }""",
        {"n": DimRange(1, 32)},
        [{"n": 1}, {"n": 7}, {"n": 32}],
    ),
    "scales_of_two_shapes": (
        18,
        """g (float[1, 2, h] x) => (float[a, b, c] y) {
          p = AveragePool<kernel_shape = [4], strides = [4]>(x) s = Shape(x) q = Shape(p)
          f = Cast<to = 1>(s) g = Cast<to = 1>(q) r = Div(f, g)
          y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
                     nearest_mode = "floor">(p, , r) }""",
        {"h": DimRange(8, 128)},
        [{"h": 9}, {"h": 37}, {"h": 128}],
    ),
}


def model_of(name):
    opset, text, dims, sizes = GRAPHS[name]
    return onnx.parser.parse_model(HEAD.format(opset) + text), dims, sizes


def given(model, size):
    draw, found = np.random.default_rng(), {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [d.dim_value or size[d.dim_param] for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        values = draw.permutation(int(np.prod(shape))) if dtype.kind == "i" else draw.random(shape)
        found[info.name] = values.reshape(shape).astype(dtype)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Compile all, and run all of them in one process without the compiler."""
    root = tmp_path_factory.mktemp("symbolic")
    for name in GRAPHS:
        model, dims, sizes = model_of(name)
        tvm_fusion.compile(model, target="cpu", dims=dims).export(root / name / "artifact")
        for i, size in enumerate(sizes):
            np.savez(root / name / f"in{i}.npz", **given(model, size))
    folders = [str(root / name) for name in GRAPHS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", LOAD, *folders], check=True, env=environment)
    return root


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", GRAPHS)
def test_right_without_the_compiler(folder, name, onnxruntime_run):
    model, _, sizes = model_of(name)
    for i in range(len(sizes)):
        wanted = onnxruntime_run(model, **dict(np.load(folder / name / f"in{i}.npz")))
        found = np.load(folder / name / f"out{i}.npz")
        for info, expected in zip(model.graph.output, wanted, strict=True):
            assert found[info.name].shape == expected.shape
            np.testing.assert_allclose(found[info.name], expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def unaligned(tmp_path_factory):
    model, _, _ = model_of("feature_pyramid")
    artifact = tvm_fusion.compile(model, target="cpu", dims={"h": DimRange(4, 64), "w": 8})
    return artifact.export(tmp_path_factory.mktemp("unaligned") / "a")


def test_as_many_as_there_are_elements(run, onnxruntime_run):
    """TopK with K of the shape, as sequences are sorted by length."""
    text = """g (int64[b] x) => (int64[p] v, int64[q] i) <int64 last = {-1}, int64[1] one = {1}> {
      s = Shape(x) k = Gather<axis = 0>(s, last) k1 = Reshape(k, one)
      v, i = TopK<axis = -1>(x, k1) }"""
    model = onnx.parser.parse_model(HEAD.format(16) + text)
    mod = import_model(model, FusionConfig(dims={"b": DimRange(1, 32)})).mod
    x = np.array([3, 9, 4, 1], "int64")
    for found, wanted in zip(run(mod, x), onnxruntime_run(model, x=x), strict=True):
        np.testing.assert_array_equal(found, wanted)


FIXED = {
    "padded before": """g (float[2, n] x) => (float[p, q] y)
        <int64 axis = {1}, int64 size = {9}, int64[1] none = {0}, int64[1] one = {1}> {
          s = Shape(x) n = Gather<axis = 0>(s, axis) r = Sub(size, n) r1 = Reshape(r, one)
          pads = Concat<axis = 0>(none, r1, none, none) y = Pad(x, pads) }""",
    "one window": """g (float[1, 2, n] x) => (float[1, 2, p] y) {
          y = AveragePool<ceil_mode = 1, count_include_pad = 1, kernel_shape = [9],
                          strides = [9]>(x) }""",
}


@pytest.mark.parametrize("name", FIXED)
def test_results_of_one_shape_at_any_extent(name, run, onnxruntime_run):
    """Kernels read an extent that no result of theirs has."""
    model = onnx.parser.parse_model(HEAD.format(19) + FIXED[name])
    mod = import_model(model, FusionConfig(dims={"n": DimRange(3, 8)})).mod
    for n in (3, 8):
        inputs = given(model, {"n": n})
        (wanted,) = onnxruntime_run(model, **inputs)
        np.testing.assert_allclose(run(mod, inputs["x"]), wanted, rtol=1e-5)


def test_sizes_of_which_levels_differ_are_refused_in_one_sentence(unaligned):
    exe = tvm_fusion.load(unaligned)
    assert exe(x=np.ones((1, 3, 6, 8), "float32"))["y"].shape == (1, 3, 6, 8)
    with pytest.raises(UserError) as caught:
        exe(x=np.ones((1, 3, 7, 8), "float32"))
    assert str(caught.value).startswith("input 'x' has shape (1, 3, 7, 8), with which operator Add")
    assert str(caught.value).endswith("; expected sizes for which these are equal.")


def test_sizes_that_are_no_multiple_are_refused_in_one_sentence(folder):
    exe = tvm_fusion.load(folder / "feature_pyramid" / "artifact")
    with pytest.raises(UserError) as caught:
        exe(x=np.ones((1, 3, 6, 8), "float32"))
    assert str(caught.value) == (
        "input 'x' has h = 6; expected 4 to 64, a multiple of 4; compile with --dim h=4..64:2."
    )
