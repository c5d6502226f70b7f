"""Between kernels of a quantised network lie bytes, and there are no kernels of conversions."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import tvm_fusion
from benchmarks.runtime_alone import RuntimeAlone

pytestmark = pytest.mark.slow_beyond(2)

TARGETS = [
    "cpu:x86-64-v3",
    "cpu:cascadelake",
    pytest.param("cpu:sapphirerapids", marks=pytest.mark.slow),
]
CHANNELS, SIZE, ROWS = 16, 14, 24


class Network:
    """Nodes one after the other, each result quantised if wanted, as quantisers export it."""

    def __init__(self, dtype):
        self.dtype, self.rng = dtype, np.random.default_rng()
        self.nodes, self.constants, self.count = [], [], 0

    def node(self, kind, *inputs, **attributes):
        self.count += 1
        self.nodes.append(helper.make_node(kind, inputs, [f"t{self.count}"], **attributes))
        return f"t{self.count}"

    def constant(self, array):
        self.count += 1
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"k{self.count}"))
        return f"k{self.count}"

    def quantised(self, x, scale=0.05):
        if not self.dtype:
            return x
        ends = self.constant(np.float32(scale)), self.constant(np.array(3, self.dtype))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *ends), *ends)

    def weight(self, *shape, axis=0):
        array = self.rng.integers(-127, 128, shape).astype("int8")
        scales = self.rng.uniform(0.001, 0.002, shape[axis]).astype("float32")
        if not self.dtype:
            along = [-1 if i == axis else 1 for i in range(len(shape))]
            return self.constant(array * scales.reshape(along))
        zeros = self.constant(np.zeros(shape[axis], "int8"))
        return self.node(
            "DequantizeLinear", self.constant(array), self.constant(scales), zeros, axis=axis
        )

    def bias(self, size):
        array = self.rng.integers(-9999, 9999, size).astype("int32")
        scales = self.rng.uniform(0.0001, 0.0002, size).astype("float32")
        if not self.dtype:
            return self.constant(array * scales)
        zeros = self.constant(np.zeros(size, "int32"))
        return self.node(
            "DequantizeLinear", self.constant(array), self.constant(scales), zeros, axis=0
        )

    def model(self, result, shape, out):
        ends = (
            [helper.make_tensor_value_info("x", T.FLOAT, shape)],
            [helper.make_tensor_value_info(result, T.FLOAT, out)],
        )
        graph = helper.make_graph(self.nodes, "quantised", *ends, self.constants)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def residual(dtype):
    """Two 3 x 3 convolutions, biases per channel, around which the image goes, and a third."""
    net = Network(dtype)

    def conv(x):
        weight, bias = net.weight(CHANNELS, CHANNELS, 3, 3), net.bias(CHANNELS)
        return net.node("Conv", x, weight, bias, pads=[1] * 4)

    x = net.quantised("x")
    y = net.quantised(net.node("Relu", conv(x)))
    y = net.quantised(conv(y))
    x = net.quantised(net.node("Relu", net.node("Add", x, y)))
    shape = [1, CHANNELS, SIZE, SIZE]
    return net.model(conv(x), shape, shape)


def layers(dtype):
    """MatMul with a bias behind it, and Gemm."""
    net = Network(dtype)
    x = net.quantised("x")
    y = net.node("Add", net.node("MatMul", x, net.weight(64, 96, axis=1)), net.bias(96))
    y = net.quantised(net.node("Relu", y))
    y = net.node("Gemm", y, net.weight(64, 96), net.bias(64), transB=1)
    y = net.quantised(net.node("Relu", y))
    return net.model(net.node("MatMul", y, net.weight(64, 32, axis=1)), [ROWS, 64], [ROWS, 32])


def counted(model, target):
    main = tvm_fusion.compile(model, target=target).manifest["functions"]["main"]
    return main["kernels"], main["intermediate_bytes"]


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_images_between_convolutions_are_bytes(dtype, target):
    kernels, between = counted(residual(dtype), target)
    image = CHANNELS * SIZE * SIZE
    # One kernel more than convolutions: x is quantised. Convolutions multiply unsigned bytes, so
    # that signed images around which a sum goes are stored once more. An image may be stored once
    # more with zeros around it; one in float32 would be four images.
    padded = CHANNELS * (SIZE + 2) ** 2
    assert kernels <= 4
    assert between <= 3 * image + (padded if dtype == "uint8" else 3 * image)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_between_products_are_bytes(target):
    kernels, between = counted(layers("uint8"), target)
    assert kernels <= 4
    assert between <= ROWS * (64 + 96 + 64)


@pytest.mark.slow
def test_biases_are_stored_as_floats_and_weights_as_bytes(tmp_path):
    artifact = tvm_fusion.compile(residual("uint8"), target="cpu:cascadelake")
    size = (artifact.export(tmp_path / "model") / "weights.bin").stat().st_size
    weights = 3 * CHANNELS * CHANNELS * 9
    assert weights <= size <= weights + 4096  # and scales, biases, sums of weights


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("make", [residual, layers])
def test_results_without_the_compiler(make, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = make("uint8")
    onnx.checker.check_model(model)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng().standard_normal(shape, "float32")
    folder = tvm_fusion.compile(model).export(tmp_path / "model")
    (found,) = RuntimeAlone().run(folder, {"x": x}).values()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (expected,) = session.run(None, {"x": x})
    # Steps of 0.05: sums that are rounded the other way where they are ties move a few results.
    assert np.abs(found - expected).max() <= 3 * 0.05
    assert np.mean(np.abs(found - expected) > 1e-4) < 0.05
