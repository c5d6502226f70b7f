"""What quantization changes, layer by layer: both models on samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

# A result of the model that is quantized is renamed before its QuantizeLinear.
_RENAMED = "_QuantizeLinear_Input"
_DEQUANTIZED = "_DequantizeLinear_Output"


@dataclass(frozen=True)
class LayerError:
    """What quantization changes in the result of a node."""

    # The node's name (of its output where it has none), and its ONNX operator.
    node: str
    operator: str
    # Root of the squares' sum of the differences, over that of the float values: what all layers up
    # to this one have changed.
    error: float


def layer_errors(
    plain: Path, made: Path, samples: Sequence[Mapping[str, np.ndarray]]
) -> tuple[list[LayerError], dict[str, float]]:
    """Run both models.

    Returns
    -------
    layers : list of LayerError
        Of the nodes that both have, the largest error first.
    outputs : dict of str to float
        Errors of the results.
    """
    float_model, quantized = onnx.load(plain), onnx.load(made)
    results = [output.name for output in float_model.graph.output]
    there = {name: node for node in quantized.graph.node for name in node.output}
    pairs: dict[str, str] = {}
    nodes: dict[str, onnx.NodeProto] = {}
    for node in float_model.graph.node:
        for name in node.output[:1]:
            renamed = f"{name}{_RENAMED}"
            if name in there:
                pairs[name] = renamed if renamed in there else name
                nodes[name] = there[pairs[name]]
                if nodes[name].op_type != node.op_type:  # a ReLU that the range replaces
                    dequantized = f"{name}{_DEQUANTIZED}"
                    pairs[name] = dequantized if dequantized in there else name
    pairs |= {name: pairs.get(name, name) for name in results}
    sessions = _session(float_model, pairs), _session(quantized, {*pairs.values(), *results})
    squares = {name: np.zeros(2) for name in [*pairs, *results]}
    of_results = {name: np.zeros(2) for name in results}
    for sample in samples:
        expected, found = (_run(session, sample) for session in sessions)
        for name, other in pairs.items():
            squares[name] += _squares(expected[name], found[other])
        for name in results:
            of_results[name] += _squares(expected[name], found[name])
    layers = [
        LayerError(node.name or name, node.op_type, _ratio(squares[name]))
        for name, node in nodes.items()
    ]
    layers.sort(key=lambda layer: -layer.error)
    return layers, {name: _ratio(sums) for name, sums in of_results.items()}


def _session(model: onnx.ModelProto, names: Any) -> Any:
    """Make a session that returns intermediate results as well."""
    import onnxruntime

    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(set(names) - known))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Optimizations would replace the nodes, by ones whose sums saturate on some CPUs.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _run(session: Any, sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(sample)), strict=True))


def _squares(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    if expected.dtype.kind != "f" or expected.shape != found.shape:
        return np.zeros(2)
    difference = found.astype(np.float64) - expected
    return np.array([np.sum(difference**2), np.sum(expected.astype(np.float64) ** 2)])


def _ratio(sums: np.ndarray) -> float:
    changed, whole = sums
    return 0.0 if changed == 0 else math.sqrt(changed / whole) if whole else math.inf
