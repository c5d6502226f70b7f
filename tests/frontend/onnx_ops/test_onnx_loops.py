"""If, Loop and Scan against ONNX Runtime: unrolled, and as functions that call themselves."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import parser

import tvm_fusion

pytestmark = pytest.mark.slow_beyond(2)

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'


@pytest.fixture
def same(onnxruntime_run, tmp_path):
    """Compile, export and load a model, and compare all results with ONNX Runtime."""

    count = itertools.count()

    def check(text, *samples, dims=None, kernels=None):
        model = parser.parse_model(HEAD + text)
        onnx.checker.check_model(model)
        artifact = tvm_fusion.compile(model, "cpu", dims=dims or {})
        program = tvm_fusion.load(artifact.export(tmp_path / f"model{next(count)}"))
        for inputs in ({n: np.asarray(a) for n, a in s.items()} for s in samples):
            wanted = onnxruntime_run(model, **inputs)
            found = list(program.run(inputs).values())
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
        if kernels is not None:
            assert artifact.manifest["functions"]["main"]["kernels"] == kernels
        return artifact

    return check


def normal(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype("float32")


COUNTED = """graph (float[3, 5] x) => (float[3, 5] last, float[n, 3, 5] all)
<int64 trips = {%d}, bool yes = {1}, float[5, 5] w = {%s}> {
    last, all = Loop (trips, yes, x) <body = step (int64 i, bool go, float[3, 5] s)
        => (bool again, float[3, 5] next, float[3, 5] out) {
        again = Identity (go)
        number = Cast <to = 1> (i)
        product = MatMul (s, w)
        moved = Add (product, number)
        next = Tanh (moved)
        out = Sub (next, x)
    }>
}"""
_W = ", ".join(f"{v:.4f}" for v in normal(25))


# A kernel a trip, and one for each two parts of the output that are joined.
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(("trips", "kernels"), [(0, None), (4, None), (300, 300 + 299)])
def test_a_counted_loop_reads_weights_and_outer_values(same, trips, kernels):
    same(COUNTED % (trips, _W), {"x": normal(3, 5)}, kernels=kernels)


WHILE = """graph (float[n, 5] x, float limit) => (float[n, 5] last, int64 count, float[k] sums)
<int64 zero = {0}, int64 one = {1}, bool yes = {1}, float half = {0.5}> {
    last, count, sums = Loop (, yes, x, zero) <body = step
        (int64 i, bool go, float[n, 5] s, int64 c)
        => (bool again, float[n, 5] next, int64 more, float sum) {
        next = Mul (s, half)
        more = Add (c, one)
        size = Abs (next)
        sum = ReduceSum <keepdims = 0> (size)
        again = Greater (sum, limit)
    }>
}"""


def test_a_loop_ends_by_a_condition_that_it_computes(same):
    samples = [{"x": normal(n, 5), "limit": np.float32(e)} for n, e in [(3, 1e-3), (7, 5), (2, 99)]]
    same(WHILE, *samples, dims={"n": tvm_fusion.DimRange(1, 9)})


GROWS = """graph (float[2, 3] x, int64 trips) => (float[m, 3] last, float[k] sums)
<bool yes = {1}> {
    last, sums = Loop (trips, yes, x) <body = step
        (int64 i, bool go, float[m, 3] s) => (bool again, float[m, 3] next, float sum) {
        again = Identity (go)
        next = Concat <axis = 0> (s, x)
        sum = ReduceSum <keepdims = 0> (next)
    }>
}"""


@pytest.mark.slow
def test_a_state_grows_over_trips_whose_number_is_an_input(same):
    samples = [{"x": normal(2, 3), "trips": np.int64(n)} for n in (0, 1, 2, 7, -3)]
    same(GROWS, *samples)


LAST = """graph (float[n, 5] x, float limit, float[5, 6] w) => (float[n, 6] y)
<int64 most = {9223372036854775807}, bool yes = {1}, float half = {0.5},
 int64[1] minus_one = {-1}, int64[1] end = {2147483647}, int64[1] axis = {0}> {
    final, states = Loop (most, yes, x) <body = step
        (int64 i, bool go, float[n, 5] s) => (bool again, float[n, 5] next, float[n, 5] state) {
        next = Mul (s, half)
        state = Identity (next)
        size = Abs (next)
        total = ReduceSum <keepdims = 0> (size)
        again = Greater (total, limit)
    }>
    last = Slice (states, minus_one, end, axis)
    flat = Squeeze (last, axis)
    sums = MatMul (flat, w)
    positive = Relu (sums)
    chances = Softmax (positive)
    y = Mul (chances, positive)
}"""


def test_the_last_of_as_many_trips_as_there_are(same):
    """As TensorFlow's recurrent layers are exported: the bound reserved 8 GB for each column."""
    samples = [
        {"x": normal(n, 5), "limit": np.float32(e), "w": normal(5, 6)}
        for n, e in [(3, 0.1), (7, 5)]
    ]
    same(LAST, *samples, dims={"n": tvm_fusion.DimRange(1, 9)})


@pytest.mark.slow
def test_scans_along_other_axes_and_backwards(same):
    text = """graph (float[3, T, 2] x, float[2, 4] h)
        => (float[2, 4] last, float[3, T] y, float[T, 3] z)
    <int64[1] axis = {1}, float[3, 4] w = {%s}> {
        last, y, z = Scan <num_scan_inputs = 2, scan_input_axes = [1, -2],
            scan_input_directions = [1, 0], scan_output_axes = [-1, 0],
            scan_output_directions = [0, 1],
            body = step (float[2, 4] s, float[3, 2] a, float[3, 2] b)
            => (float[2, 4] next, float[3] one, float[3] two) {
            at = Transpose (a)
            p = MatMul (at, w)
            q = Add (p, s)
            next = Tanh (q)
            d = Sub (a, b)
            one = ReduceSum <keepdims = 0> (d, axis)
            two = ReduceMax <keepdims = 0> (b, axis)
        }> (h, x, x)
    }"""
    text = text.replace("%s", ", ".join(f"{v:.4f}" for v in normal(12)))
    for length in (6, 40):
        same(text, {"x": normal(3, length, 2), "h": normal(2, 4)}, dims={"T": length})
    dims = {"T": tvm_fusion.DimRange(1, 64)}
    same(text, *({"x": normal(3, n, 2), "h": normal(2, 4)} for n in (1, 5, 33)), dims=dims)


NESTED = """graph (float[n, 4] x, bool flag) => (float[n, 4] y, float[a, b] z)
<int64[1] zero = {0}, int64 three = {3}, int64 many = {90}, bool yes = {1}> {
    y, z = Loop (three, yes, x) <body = outer (int64 i, bool go, float[n, 4] s)
        => (bool again, float[n, 4] next, float[b] row) {
        again = Identity (go)
        t = If (flag) <then_branch = left () => (float[n, 4] l) { l = Add (s, x) },
            else_branch = right () => (float[n, 4] r) {
                r = Loop (many, go, s) <body = inner (int64 j, bool g, float[n, 4] u)
                    => (bool again2, float[n, 4] v) {
                    again2 = Identity (g)
                    w = Mul (u, x)
                    v = Tanh (w)
                }>
            }>
        next = Relu (t)
        row = ReduceSum <keepdims = 0> (next, zero)
    }>
}"""


@pytest.mark.slow
def test_graphs_in_graphs_read_the_values_around_all_of_them(same):
    samples = [{"x": normal(n, 4), "flag": np.bool_(f)} for n, f in [(3, 0), (3, 1), (5, 0)]]
    same(NESTED, *samples, dims={"n": tvm_fusion.DimRange(1, 8)})


def test_branches_of_different_extents(same):
    text = """graph (float[6, 4] x, bool flag) => (float[p, 4] y, float[6] z) {
        y, z = If (flag) <then_branch = left () => (float[2, 4] l, float[6] m) {
            e = Constant <value = int64[2] {2, 4}> ()
            parts = Constant <value = int64[2] {2, 4}> ()
            l, rest = Split <axis = 0> (x, parts)
            a = Constant <value = int64[1] {1}> ()
            m = ReduceMax <keepdims = 0> (x, a)
        }, else_branch = right () => (float[6, 4] r, float[6] s) {
            r = Neg (x)
            b = Constant <value = int64[1] {1}> ()
            s = ReduceMin <keepdims = 0> (x, b)
        }>
    }"""
    same(text, *({"x": normal(6, 4), "flag": np.bool_(f)} for f in (0, 1)))
