"""Models of a few operators, with what numpy makes of their inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Value = tuple[str, Any, Sequence[int | str]]
CLASSES, FEATURES = 32, 64


def onnx_model(
    nodes: Sequence[tuple],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    weights: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """Nodes are (operator, inputs, outputs) and optionally attributes."""
    graph = helper.make_graph(
        [helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes],
        "tiny",
        [_value(*value) for value in inputs],
        [_value(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _value(name: str, dtype: Any, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def dense_weights(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "weight": generator.standard_normal((FEATURES, CLASSES)).astype("float32"),
        "bias": generator.standard_normal(CLASSES).astype("float32"),
    }


def dense(seed: int = 0) -> onnx.ModelProto:
    """``scores = relu(data @ weight + bias)`` for any batch; its bias is too small to be lifted."""
    return onnx_model(
        [
            ("MatMul", ["data", "weight"], ["product"]),
            ("Add", ["product", "bias"], ["sum"]),
            ("Relu", ["sum"], ["scores"]),
        ],
        [("data", TensorProto.FLOAT, ["batch", FEATURES])],
        [("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        dense_weights(seed),
    )


def dense_data(batch: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, FEATURES)).astype("float32")


def dense_expected(data: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    product = data.astype("float64") @ weight.astype("float64")
    return np.maximum(product + bias.astype("float64"), 0)


def classifier() -> onnx.ModelProto:
    """Return the model of the documentation's pages: ``image`` to ``scores``, any batch."""
    draw = np.random.default_rng().standard_normal
    weights = {"filters": draw((8, 3, 3, 3)), "classes": draw((8, 10))}
    return onnx_model(
        [
            ("Conv", ["image", "filters"], ["features"], {"strides": [4, 4]}),
            ("Relu", ["features"], ["positive"]),
            ("GlobalAveragePool", ["positive"], ["pooled"]),
            ("Flatten", ["pooled"], ["means"]),
            ("MatMul", ["means", "classes"], ["scores"]),
        ],
        [("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [("scores", TensorProto.FLOAT, ["batch", 10])],
        {name: value.astype("float32") for name, value in weights.items()},
    )
