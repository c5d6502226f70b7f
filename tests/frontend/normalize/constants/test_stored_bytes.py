"""Bytes that an artifact stores, against those of the model: folding must not enlarge them."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tvm_fusion
from tvm_fusion.frontend.normalize.constants.stored import SMALL

HEADER = '<ir_version: 9, opset_import: ["": 21]>\n'


def normal(*shape, dtype="float32"):
    return np.random.default_rng().standard_normal(shape).astype(dtype)


def integers(*shape, dtype="int8", low=-8, high=8):
    return np.random.default_rng().integers(low, high, shape).astype(dtype)


EACH = np.array
# The graph; by name its constants; which of them are stored, and nothing else.
GRAPHS = {
    "broadcast row": (
        "g (float[64, 96] x) => (float[64, 96] y) { e = Expand(b, s) y = Add(x, e) }",
        {"b": normal(96), "s": EACH([64, 96])},
        "b",
    ),
    "broadcast matrix": (
        "g (float[16, 10, 64] x) => (float[16, 10, 96] y) { e = Expand(w, s) y = MatMul(x, e) }",
        {"w": normal(64, 96), "s": EACH([16, 64, 96])},
        "w",
    ),
    "parts of one matrix": (
        "g (float[10, 64] x) => (float[10, 64] y) {"
        "a, b, c = Split<axis = 0, num_outputs = 3>(w)"
        "at = Transpose(a) bt = Transpose(b) ct = Transpose(c)"
        "q = MatMul(x, at) k = MatMul(x, bt) v = MatMul(x, ct) s = Add(q, k) y = Add(s, v) }",
        {"w": normal(192, 64)},
        "w",
    ),
    "wider type": (
        "g (float[10, 64] x) => (float[10, 96] y) { c = Cast<to = 1>(w) y = MatMul(x, c) }",
        {"w": normal(64, 96, dtype="float16")},
        "w",
    ),
    "dequantised by hand": (
        "g (float[10, 64] x) => (float[10, 96] y) {"
        "c = Cast<to = 1>(w) m = Mul(c, s) y = MatMul(x, m) }",
        {"w": integers(64, 96), "s": normal(96)},
        "ws",
    ),
    "dequantised": (
        "g (float[10, 64] x) => (float[10, 96] y) {"
        "c = DequantizeLinear<axis = 1>(w, s) y = MatMul(x, c) }",
        {"w": integers(64, 96), "s": np.abs(normal(96))},
        "ws",
    ),
    "packed by four bits": (
        "g (float[10, 128] x) => (float[10, 192] y) {"
        'low = BitwiseAnd(w, mask) high = BitShift<direction = "RIGHT">(w, four)'
        "l = Unsqueeze(low, axis) h = Unsqueeze(high, axis) both = Concat<axis = 2>(l, h)"
        "all = Reshape(both, shape) c = Cast<to = 1>(all) z = Sub(c, zero) d = Mul(z, s)"
        "t = Transpose(d) y = MatMul(x, t) }",
        {
            "w": integers(192, 64, dtype="uint8", low=0, high=256),
            "mask": EACH(15, "uint8"), "four": EACH(4, "uint8"), "axis": EACH([2]),
            "shape": EACH([192, 128]), "zero": EACH(8, "float32"), "s": normal(192, 1),
        },
        "ws",
    ),
    "transposed twice": (
        "g (float[10, 64] x) => (float[10, 96] y) {"
        "a = Transpose(w) b = Transpose(w) p = MatMul(x, a) q = Relu(x) o = MatMul(q, b)"
        "y = Add(p, o) }",
        {"w": normal(96, 64)},
        "w",
    ),
    "sums of a matrix": (
        "g (float[10, 64] x) => (float[10, 64] y) { s = ReduceSum(w, axis) y = Add(x, s) }",
        {"w": normal(96, 64), "axis": EACH([0])},
        "",
    ),
}  # fmt: skip


def built(text, constants, folder, target="cpu:x86-64-v3"):
    model = onnx.parser.parse_model(HEADER + text)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    tvm_fusion.compile(model, target).export(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    copies = [d for d in manifest["decisions"] if d["code"] == "copy_saves_time"]
    return sum(w["bytes"] for w in manifest["weights"].values()), copies


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("name", GRAPHS)
def test_no_more_bytes_than_the_model_has(name, tmp_path):
    text, constants, kept = GRAPHS[name]
    stored, copies = built(text, constants, tmp_path / "model")
    assert stored <= sum(constants[n].nbytes for n in kept) + SMALL * (kept == "")
    assert not copies


def test_a_tied_embedding(tmp_path):
    """Read by row and as the transposed weights of a product: on a CPU a second copy pays."""
    text = (
        "g (int64[4] i) => (float[4, 100] y) {e = Gather(w, i) t = Transpose(w) y = MatMul(e, t) }"
    )
    table = normal(100, 64)
    stored, (copy,) = built(text, {"w": table}, tmp_path / "cpu")
    assert stored >= 2 * table.nbytes == -2 * copy["bytes_saved"]  # packed, columns are padded
    assert "permute_dims" in copy["sentence"]


@pytest.mark.parametrize("reader", ["y = Add(x, c)", "b = Relu(c) y = Sub(x, b)"])
def test_what_saves_more_time_than_it_costs_is_told(reader, tmp_path):
    """A bias of relative positions: rows of a table, gathered by constants, in every block."""
    text = (
        "g (float[4, 49, 49] x) => (float[4, 49, 49] y) {"
        f"a = Gather(t, i) b0 = Reshape(a, s) c = Transpose<perm = [2, 0, 1]>(b0) {reader} }}"
    )
    constants = {
        "t": normal(169, 4),
        "i": integers(2401, dtype="int64", low=0, high=169),
        "s": EACH([49, 49, 4]),
    }
    stored, (copy,) = built(text, constants, tmp_path / "model")
    assert stored == 4 * 49 * 49 * 4 == -copy["bytes_saved"]
    assert "stored even where their sources are smaller" in copy["sentence"]


def test_weights_of_a_convolution_are_constants(tmp_path):
    """Its kernel for weights that are computed is a generic one."""
    text = (
        "g (float[1, 32, 8, 8] x) => (float[1, 32, 6, 6] y) {"
        "c = Cast<to = 1>(w) m = Mul(c, s) y = Conv(x, m) }"
    )
    constants = {"w": integers(32, 32, 3, 3), "s": normal(32, 1, 1, 1)}
    stored, (copy,) = built(text, constants, tmp_path / "model")
    assert stored == 4 * constants["w"].size == -copy["bytes_saved"]
