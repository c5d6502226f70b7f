"""Roles: what each blank initializer of a graph is for, and how large its values should be.

Both are read off the graph. One walk in execution order estimates mean and variance of every
activation, and each layer's weights are scaled so that its output comes out near unit variance.
This is He initialisation (He et al. 2015, section 2.2) with the second moment of the layer's own
input in place of a fixed one, so that residual sums, gates, pools and untrained batch norms neither
explode nor vanish over a hundred layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.zoo.weights import BIAS, MEAN, SCALE, TABLE, VARIANCE, Recipe

# Operators that move or rename the elements of a constant.
_VIEWS = {"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_NORMS = {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"}
_NONLINEAR: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Clip": lambda x: np.clip(x, 0, 6),
    "Erf": lambda x: np.tanh(1.2 * x),
    "Gelu": lambda x: x / (1 + np.exp(-1.7 * x)),
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
}
_POINTS, _MASSES = np.polynomial.hermite_e.hermegauss(24)
_MASSES = _MASSES / _MASSES.sum()
_ATTENTION = 0.5  # share of the second moment that a softmax-weighted average of rows keeps
_HEAD_GAIN = 2.25  # on the layer before a final softmax: probabilities with a std above 1e-3


@dataclass(frozen=True)
class Moments:
    """Estimated mean and variance over all elements of an activation."""

    mean: float
    var: float

    @staticmethod
    def of(mean: float, second: float) -> Moments:
        """Moments from E[x] and E[x^2]."""
        return Moments(mean, max(second - mean * mean, 0.0))

    @property
    def second(self) -> float:
        """E[x^2]."""
        return self.mean * self.mean + self.var

    def through(self, function: Callable[[np.ndarray], np.ndarray]) -> Moments:
        """Moments of ``function`` of a normal variable with these moments."""
        values = function(self.mean + math.sqrt(self.var) * _POINTS)
        mean = float(_MASSES @ values)
        return Moments(mean, float(_MASSES @ (values - mean) ** 2))


def recipes(graph: onnx.GraphProto, shapes: dict[str, tuple[int, ...]]) -> dict[str, Recipe]:
    """Find the role and scale of every blank tensor.

    Parameters
    ----------
    graph
        The graph, nodes in execution order.
    shapes
        Shapes of the tensors to draw, by name.

    Returns
    -------
    dict of str to Recipe
        One recipe per name in ``shapes``. A tensor used twice (tied embeddings) keeps its first
        role.

    Raises
    ------
    ValueError
        If a tensor's role cannot be told from its uses.
    """
    walk = _Walk(graph, shapes)
    for node in graph.node:
        walk.visit(node)
    missing = sorted(shapes.keys() - walk.found.keys())
    if missing:
        raise ValueError(f"no role found for the initializers {', '.join(missing)}")
    return {name: walk.found[name] for name in shapes}


class _Walk:
    """State of the walk: moments of activations, views of blank tensors, recipes found."""

    def __init__(self, graph: onnx.GraphProto, shapes: dict[str, tuple[int, ...]]):
        self.found: dict[str, Recipe] = {}
        # A view of a blank tensor: whose, and in which shape.
        self.blank = {name: (name, shape) for name, shape in shapes.items()}
        self.constants = {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in graph.initializer
            if tensor.name not in shapes and math.prod(tensor.dims) > 0
        }
        self.moments = {
            name: Moments(float(values.mean()), float(values.var()))
            for name, values in self.constants.items()
            if values.dtype.kind == "f"
        }
        self.gates: dict[str, str] = {}  # sigmoid's output: its input
        self.head = _head(graph)

    def visit(self, node: onnx.NodeProto) -> None:
        op, ins = node.op_type, list(node.input)
        if op in _VIEWS and ins[0] in self.blank:
            self.blank[node.output[0]] = self._view(node)
            return
        rule = getattr(self, f"_{op.lower()}", None)
        if rule is not None:
            moments = rule(node, ins)
        elif op in _NONLINEAR:
            moments = self._of(ins[0]).through(_NONLINEAR[op])
        elif op in _NORMS:
            self._take(ins[1:2], SCALE)
            self._take(ins[2:3], BIAS)
            moments = Moments(0.0, 1.0)
        else:
            moments = self._of(ins[0]) if ins else Moments(0.0, 1.0)
        self.moments.update(dict.fromkeys(node.output, moments))

    def _view(self, node: onnx.NodeProto) -> tuple[str, tuple[int, ...]]:
        name, shape = self.blank[node.input[0]]
        if node.op_type == "Transpose":
            perm = next((a.ints for a in node.attribute if a.name == "perm"), None)
            shape = tuple(shape[i] for i in perm) if perm else shape[::-1]
        elif node.op_type == "Reshape":
            target = self.constants[node.input[1]]
            shape = np.empty(shape, np.bool_).reshape(target).shape
        return name, shape

    def _of(self, name: str) -> Moments:
        if name in self.blank:
            recipe = self.found[self.blank[name][0]]
            return Moments(recipe.center, recipe.spread**2)
        return self.moments.get(name, Moments(0.0, 1.0))

    def _take(self, names: list[str], recipe: Recipe) -> None:
        """Set the role of the blank tensors among ``names``."""
        for name in names:
            if name in self.blank:
                self.found.setdefault(self.blank[name][0], recipe)

    # Layers: a blank weight is scaled for an output of variance 1.

    def _layer(self, node: onnx.NodeProto, weight: str, fan_in: int, source: str) -> Moments:
        gain = _HEAD_GAIN if node.output[0] == self.head else 1.0
        std = gain / math.sqrt(fan_in * max(self._of(source).second, 1e-3))
        self._take([weight], Recipe("weight", 0.0, std))
        return Moments(0.0, gain * gain)

    def _conv(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        if ins[1] not in self.blank:
            return self._of(ins[0])
        self._take(ins[2:3], BIAS)
        return self._layer(node, ins[1], math.prod(self.blank[ins[1]][1][1:]), ins[0])

    def _gemm(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        if ins[1] not in self.blank:
            return self._of(ins[0])
        self._take(ins[2:3], BIAS)
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        return self._layer(node, ins[1], self.blank[ins[1]][1][1 if transposed else 0], ins[0])

    def _matmul(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        if ins[1] in self.blank:
            return self._layer(node, ins[1], self.blank[ins[1]][1][-2], ins[0])
        if ins[0] in self.blank:
            return self._layer(node, ins[0], self.blank[ins[0]][1][-1], ins[1])
        return Moments(0.0, _ATTENTION * self._of(ins[1]).second)

    # Operators with a tensor of their own, or several inputs.

    def _batchnormalization(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        for name, recipe in zip(ins[1:], (SCALE, BIAS, MEAN, VARIANCE), strict=True):
            self._take([name], recipe)
        data = self._of(ins[0])
        # Over v ~ U(0.5, 1.5): E[1/v] = log 3, E[1/sqrt(v)] = 1.035.
        return Moments.of(1.035 * data.mean, math.log(3) * (data.second + 0.02))

    def _gather(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        self._take(ins[:1], TABLE)
        return self._of(ins[0])

    def _concat(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        self._take(ins, TABLE)  # a class token
        parts = [self._of(name) for name in ins]
        mean = sum(part.mean for part in parts) / len(parts)
        return Moments.of(mean, sum(part.second for part in parts) / len(parts))

    def _mul(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        self._take(ins, SCALE)
        for gate, data in (ins, ins[::-1]):
            if self.gates.get(gate) == data:
                return self._of(data).through(lambda x: x / (1 + np.exp(-x)))  # swish
        a, b = (self._of(name) for name in ins)
        return Moments.of(a.mean * b.mean, a.second * b.second)

    def _sigmoid(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        self.gates[node.output[0]] = ins[0]
        return self._of(ins[0]).through(lambda x: 1 / (1 + np.exp(-x)))

    def _sum(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        self._take(ins, BIAS)
        parts = [self._of(name) for name in ins]
        return Moments(sum(part.mean for part in parts), sum(part.var for part in parts))

    _add = _sum

    # Pools: neighbours are alike, so a window counts as a few independent draws.

    def _maxpool(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        data = self._of(ins[0])
        return Moments(data.mean + 0.75 * math.sqrt(data.var), 0.8 * data.var)

    def _averagepool(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        data = self._of(ins[0])
        return Moments(data.mean, data.var / 2)

    _globalaveragepool = _reducemean = _averagepool

    # The parts of an RMS norm: x * (1 / sqrt(mean(x^2))) comes out at 1.

    def _pow(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        return Moments(self._of(ins[0]).second, 0.0)

    def _sqrt(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        return Moments(math.sqrt(abs(self._of(ins[0]).mean)), 0.0)

    def _reciprocal(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        return Moments(1 / math.sqrt(max(self._of(ins[0]).second, 1e-6)), 0.0)

    def _div(self, node: onnx.NodeProto, ins: list[str]) -> Moments:
        a, square = self._of(ins[0]), max(self._of(ins[1]).second, 1e-6)
        return Moments(a.mean / math.sqrt(square), a.var / square)


def _head(graph: onnx.GraphProto) -> str | None:
    """Output of the last weighted layer, if the graph ends in a softmax."""
    outputs = {value.name for value in graph.output}
    if not any(n.op_type == "Softmax" and n.output[0] in outputs for n in graph.node):
        return None
    layers = [n for n in graph.node if n.op_type in ("Conv", "Gemm", "MatMul")]
    return layers[-1].output[0]
