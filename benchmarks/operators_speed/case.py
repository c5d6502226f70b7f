"""A model of one ONNX operator with inputs to run it on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 20
SIZES = {"small": (16, 64), "medium": (128, 512), "large": (1024, 1024)}


@dataclass(frozen=True)
class Case:
    """One operator on some inputs."""

    name: str  # the operator, and what tells cases of it apart
    operator: str  # its ONNX name
    inputs: Sequence[np.ndarray]  # what a call gives
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the node
    constants: Sequence[np.ndarray | None] = ()  # further inputs behind those, as initializers
    outputs: int = 1  # how many results it has

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """Name the inputs."""
        return {f"x{i}": array for i, array in enumerate(self.inputs)}

    def model(self) -> onnx.ModelProto:
        """Write the model, with the shapes of its results."""
        constants = {f"c{i}": c for i, c in enumerate(self.constants) if c is not None}
        names = [
            *self.feeds,
            *(f"c{i}" if f"c{i}" in constants else "" for i in range(len(self.constants))),
        ]
        results = [f"y{i}" for i in range(self.outputs)]
        graph = helper.make_graph(
            [helper.make_node(self.operator, names, results, **self.attributes)],
            "case",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in self.feeds.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in results],
            [numpy_helper.from_array(c, n) for n, c in constants.items()],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
