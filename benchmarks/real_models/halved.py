"""A file whose weights are rounded to float16: how far that alone moves its results."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


def halved(path: Path) -> bytes:
    """Return a model with float32 weights and constants as float16 has them."""
    model = onnx.load(path)
    for tensor in _constants(model.graph):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = rounded(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return bytes(model.SerializeToString())


def halved_inputs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs, those of float32 as float16 has them."""
    return {n: rounded(x) if x.dtype == "float32" else x for n, x in given.items()}


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to float16 and back; what exceeds its range stays."""
    with np.errstate(over="ignore"):
        half = values.astype("float16").astype("float32")
    return np.where(np.isfinite(half), half, values).astype("float32")


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for inner in ([attribute.g] if attribute.HasField("g") else []) + [*attribute.graphs]:
                yield from _constants(inner)
