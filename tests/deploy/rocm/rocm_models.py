"""Graphs of ONNX that run on an interpreted AMD GPU, and what ONNX Runtime computes of them."""

import numpy as np
import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

import tvm_fusion

onnxruntime = pytest.importorskip("onnxruntime")
ARCHS = ["gfx90a", "gfx942", "gfx1100"]


class Models:
    """Graphs of ONNX, written node by node; weights are drawn."""

    def __init__(self):
        self.nodes, self.weights = [], {}
        self._rng = np.random.default_rng()

    def weight(self, *shape, scale=None):
        name = f"w{len(self.weights)}"
        scale = 1 / np.sqrt(shape[0]) if scale is None else scale
        self.weights[name] = (scale * self._rng.standard_normal(shape)).astype("float32")
        return name

    def constant(self, values, dtype="int64"):
        name = f"c{len(self.weights)}"
        self.weights[name] = np.array(values, dtype)
        return name

    def emit(self, kind, *inputs, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append((kind, list(inputs), [name], attributes))
        return name

    def linear(self, x, k, n):
        return self.emit(
            "Add", self.emit("MatMul", x, self.weight(k, n)), self.weight(n, scale=0.1)
        )

    def finish(self, shape, result, out_shape, **others):
        """Return the model of an input ``x``, and of others by their shapes."""
        inputs = [(name, T.FLOAT, of) for name, of in {"x": shape, **others}.items()]
        return onnx_model(self.nodes, inputs, [(result, T.FLOAT, out_shape)], self.weights)


def load(model, arch, gpu, folder, **options):
    gpu.configure(arch)
    return tvm_fusion.load(tvm_fusion.compile(model, f"rocm:{arch}", **options).export(folder))


def wanted(model, x, **others):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x, **others})[0]


def draw(*shape):
    return np.random.default_rng().standard_normal(shape).astype("float32")


def agree(found, want, dtype="float32"):
    eps = np.finfo(dtype).eps
    assert found.shape == want.shape
    assert np.abs(found.astype("float64") - want).max() <= 100 * eps * np.abs(want).max()
