"""A network as ONNX Runtime quantizes it, in both of its formats."""

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_fusion

onnxruntime = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")
pytestmark = pytest.mark.slow
IMAGE = (2, 3, 16, 15)


def network(onnx_model, rng):
    def weights(*shape):
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w1"], ["d"]),
        helper.make_node("Add", ["d", "r"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], transB=1),
    ]
    given = {"w0": weights(16, 3, 3, 3), "b0": weights(16, 9), "w1": weights(16, 16, 1, 1)}
    given |= {"w2": weights(10, 16), "b2": weights(10, 9)}
    given |= {name: given[name][:, 0].copy() for name in ("b0", "b2")}
    floats = ("float32", list(IMAGE))
    return onnx_model(nodes, {"x": floats}, {"y": ("float32", [2, 10])}, given, opset=17)


@pytest.mark.parametrize(("format", "most"), [("QOperator", 4), ("QDQ", 10)])
def test_static_quantization(format, most, onnx_model, rng, tmp_path):
    plain, path = str(tmp_path / "plain.onnx"), str(tmp_path / "quantized.onnx")
    onnx.save(network(onnx_model, rng), plain)
    images = iter([{"x": rng.standard_normal(IMAGE, "float32")} for _ in range(4)])

    class Reader(quantization.CalibrationDataReader):
        def get_next(self):
            return next(images, None)

    chosen = getattr(quantization.QuantFormat, format)
    quantization.quantize_static(plain, path, Reader(), quant_format=chosen, per_channel=True)
    artifact = tvm_fusion.compile(path)
    assert artifact.manifest["functions"]["main"]["kernels"] <= most
    artifact.export(tmp_path / "model")
    run = tvm_fusion.load(tmp_path / "model")
    x = rng.standard_normal(IMAGE, "float32")
    # Its graph optimizations make products of bytes whose sums of pairs saturate without VNNI.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(path, options).run(None, {"x": x})
    (found,) = run(x=x).values()
    # A few steps of 8 bits: sums that are rounded the other way where they are ties.
    step = (expected.max() - expected.min()) / 255
    assert np.abs(np.asarray(found) - expected).max() <= 3 * step
