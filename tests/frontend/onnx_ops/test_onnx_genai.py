"""A decoder layer as the model builder of onnxruntime-genai writes it, against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_fusion
from tvm_fusion import DimRange

pytestmark = pytest.mark.slow

HEADS, SHARED, WIDTH, SIZE, INNER, WORDS = 4, 2, 16, 64, 96, 160


class _Builder:
    """Nodes and weights of one graph."""

    def __init__(self, rng):
        self.rng, self.nodes, self.weights = rng, [], {}

    def weight(self, name, array):
        self.weights[name] = array
        return name

    def node(self, op, inputs, outputs, domain="com.microsoft", **attrs):
        outputs = outputs.split(" ")
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attrs))
        return outputs[0]

    def matmul(self, x, terms, columns, name, bits=4):
        blocks, draw = -(-terms // 32), self.rng.integers
        numbers = draw(0, 256, (columns, blocks, 4 * bits)).astype("uint8")
        scales = self.rng.uniform(0.005, 0.02, columns * blocks).astype("float32")
        zeros = draw(0, 256, columns * -(-blocks * bits // 8)).astype("uint8")
        arrays = zip("qsz", (numbers, scales, zeros), strict=True)
        given = [self.weight(f"{name}.{key}", array) for key, array in arrays]
        attrs = {"K": terms, "N": columns, "bits": bits, "block_size": 32, "accuracy_level": 0}
        return self.node("MatMulNBits", [x, *given], name, **attrs)

    def norm(self, x, skip, name, outputs):
        gamma = self.weight(name, self.rng.uniform(0.5, 1.5, SIZE).astype("float32"))
        op = "SkipSimplifiedLayerNormalization"
        return self.node(op, [x, skip, gamma], outputs, epsilon=1e-6)


@pytest.fixture(scope="module")
def layer():
    b = _Builder(np.random.default_rng())
    table = b.rng.integers(0, 256, (WORDS, SIZE // 2)).astype("uint8")
    scales = b.rng.uniform(0.01, 0.05, (WORDS, SIZE // 32)).astype("float32")
    given = [b.weight("table", table), "input_ids", b.weight("table_scales", scales)]
    blocks = {"bits": 4, "block_size": 32, "gather_axis": 0, "quantize_axis": 1}
    x = b.node("GatherBlockQuantized", given, "x", **blocks)
    one = b.weight("one", np.array([1]))
    total = b.node("ReduceSum", ["attention_mask", one], "tokens", "", keepdims=1)
    b.node("Cast", [b.node("Sub", [total, one], "last", "")], "lengths", "", to=TensorProto.INT32)
    extents = b.node("Shape", ["attention_mask"], "extents", "")
    extent = b.node("Gather", [extents, b.weight("axis", np.array(1))], "extent", "")
    b.node("Cast", [extent], "total", "", to=TensorProto.INT32)
    angles = b.rng.standard_normal((64, WIDTH // 2)).astype("float32")
    b.weight("cos", np.cos(angles)), b.weight("sin", np.sin(angles))
    gamma = b.weight("gamma", b.rng.uniform(0.5, 1.5, SIZE).astype("float32"))
    norm = {"axis": -1, "epsilon": 1e-6, "stash_type": 1}
    y = b.node("SimplifiedLayerNormalization", [x, gamma], "y", "", **norm)
    states = [
        b.matmul(y, SIZE, heads * WIDTH, name, bits)
        for name, heads, bits in (("q", HEADS, 8), ("k", SHARED, 4), ("v", SHARED, 4))
    ]
    cache = ["past.k", "past.v", "lengths", "total", "cos", "sin"]
    attention = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1, "scale": 0.25}
    attended = b.node(
        "GroupQueryAttention", [*states, *cache], "attended present.k present.v", **attention
    )
    b.norm(x, b.matmul(attended, HEADS * WIDTH, SIZE, "o"), "gamma2", "inner   rest")
    gate, up = (b.matmul("inner", SIZE, INNER, n, bits) for n, bits in (("gate", 4), ("up", 2)))
    silu = b.node("Mul", [gate, b.node("Sigmoid", [gate], "sigmoid", "")], "silu", "")
    down = b.matmul(b.node("Mul", [silu, up], "product", ""), INNER, SIZE, "down")
    b.matmul(b.norm("rest", down, "gamma3", "normed"), SIZE, WORDS, "logits")

    def info(name, dtype, *shape):
        return helper.make_tensor_value_info(name, dtype, shape)

    integers, floats = TensorProto.INT64, TensorProto.FLOAT
    graph = helper.make_graph(
        b.nodes,
        "layer",
        [
            info("input_ids", integers, "batch", "steps"),
            info("attention_mask", integers, "batch", "total_length"),
            *(info(f"past.{n}", floats, "batch", SHARED, "past_length", WIDTH) for n in "kv"),
        ],
        [
            info("logits", floats, "batch", "steps", WORDS),
            *(info(f"present.{n}", floats, "batch", SHARED, "total_length", WIDTH) for n in "kv"),
        ],
        [numpy_helper.from_array(array, name) for name, array in b.weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


#: Dimensions, and tokens of calls: new, before, places of the cache.
RUNS = {
    "decode, a cache that grows": (
        {"steps": 1, "past_length": DimRange(1, 32), "total_length": DimRange(2, 33)},
        [(1, 6, 6), (1, 11, 11)],
    ),
    "any length into a buffer": (
        {"steps": DimRange(1, 16), "past_length": 32, "total_length": DimRange(1, 32)},
        [(5, 0, 32), (1, 5, 32), (3, 6, 32)],
    ),
    "any length, a cache that grows": (
        {
            "steps": DimRange(1, 16),
            "past_length": DimRange(0, 32),
            "total_length": DimRange(1, 48),
        },
        [(5, 0, 0), (3, 6, 6)],
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_decoder_layer(layer, rng, case):
    dims, calls = RUNS[case]
    reference = onnxruntime.InferenceSession(layer.SerializeToString())
    exe = tvm_fusion.load(tvm_fusion.compile(layer, target="cpu", dims={"batch": 1, **dims}))
    for steps, before, places in calls:
        shape = (1, SHARED, places, WIDTH)
        given = {
            "input_ids": rng.integers(0, WORDS, (1, steps)),
            "attention_mask": np.ones((1, before + steps), "int64"),
            **{f"past.{n}": rng.standard_normal(shape).astype("float32") for n in "kv"},
        }
        found, expected = exe.run(given), reference.run(None, given)
        np.testing.assert_allclose(found["logits"], expected[0], rtol=1e-4, atol=1e-4)
        for name, other in zip(("present.k", "present.v"), expected[1:], strict=True):
            assert found[name].shape == other.shape
            known = slice(0, before + steps)
            np.testing.assert_allclose(found[name][:, :, known], other[:, :, known], atol=1e-4)
