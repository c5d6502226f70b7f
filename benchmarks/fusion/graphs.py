"""Small graphs without matrix products or attention, and what stock TVM launches for them.

Each is built for a number of rows, which may be symbolic, and of columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op

from .case import Case, module, tensor
from .references import EPSILON, layer_norm, softmax

SIZES: dict[str, tuple[int, int, bool]] = {
    "8x1024": (8, 1024, False),
    "7x1000": (7, 1000, False),
    "nx1000": (7, 1000, True),
}
GRAPHS: dict[str, Graph] = {}

_erf = np.vectorize(math.erf, otypes=["float64"])


@dataclass(frozen=True)
class Graph:
    """A family of modules, by rows and columns."""

    name: str  # unique
    # From rows (an int or a symbolic variable) and columns to a ``tvm.IRModule``.
    build: Callable[[Any, int], tvm.IRModule]
    reference: Callable[..., Any]  # from the inputs to the output or outputs
    stock: int  # PrimFuncs left by stock passes for CUDA
    # Kernels that the figure asks for.
    fewest: int = 1
    most: int = 1
    tolerance: float = 1e-5  # largest relative error

    def case(self, size: str) -> Case:
        """Return the graph at one of :data:`SIZES`."""
        rows, columns, symbolic = SIZES[size]

        def build() -> tvm.IRModule:
            return self.build(tirx.Var("n", "int64") if symbolic else rows, columns)

        dims = {"n": rows} if symbolic else {}
        return Case(f"{self.name}-{size}", build, self.reference, dims, self.tolerance)


def _graph(reference: Callable[..., Any], **figures: Any) -> Callable[[Callable], Callable]:
    def register(build: Callable[[Any, int], tvm.IRModule]) -> Callable:
        GRAPHS[build.__name__] = Graph(build.__name__, build, reference, **figures)
        return build

    return register


def _rows(rows: Any, columns: int, *names: str, dtype: str = "float32") -> list[relax.Var]:
    return [tensor(name, rows, columns, dtype=dtype) for name in names]


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + _erf(x / math.sqrt(2))) / 2


@_graph(softmax, stock=4)
def softmax_written_out(rows: Any, columns: int) -> tvm.IRModule:
    """Write softmax as max, sub, exp, sum, div."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        e = b.emit(op.exp(b.emit(op.subtract(x, b.emit(op.max(x, -1, keepdims=True))))))
        return op.divide(e, b.emit(op.sum(e, -1, keepdims=True)))

    return module(_rows(rows, columns, "x"), body)


@_graph(lambda x, gamma: x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * gamma, stock=2)
def rms_norm_written_out(rows: Any, columns: int) -> tvm.IRModule:
    """Write RMS norm as square, mean, add, rsqrt, mul, mul."""

    def body(b: relax.BlockBuilder, x: relax.Var, gamma: relax.Var) -> relax.Expr:
        mean = b.emit(op.mean(b.emit(op.multiply(x, x)), -1, keepdims=True))
        scale = b.emit(op.rsqrt(b.emit(op.add(mean, relax.const(EPSILON, "float32")))))
        return op.multiply(b.emit(op.multiply(x, scale)), gamma)

    return module([*_rows(rows, columns, "x"), tensor("gamma", columns)], body)


def _add_norm_gelu(b: relax.BlockBuilder, x: Any, r: Any, gamma: Any, beta: Any) -> relax.Expr:
    s = b.emit(op.add(x, r))
    return op.nn.gelu(b.emit(op.nn.layer_norm(s, gamma, beta, axes=-1, epsilon=EPSILON)))


def _affine(columns: int) -> list[relax.Var]:
    return [tensor("gamma", columns), tensor("beta", columns)]


@_graph(lambda x, r, gamma, beta: _gelu(layer_norm(x + r, gamma, beta)), stock=2)
def add_layer_norm_gelu(rows: Any, columns: int) -> tvm.IRModule:
    """Return gelu(layer_norm(x + r))."""
    return module([*_rows(rows, columns, "x", "r"), *_affine(columns)], _add_norm_gelu)


@_graph(lambda x, r, gamma, beta: _gelu(layer_norm(x + r, gamma, beta)), stock=3)
def without_dataflow_block(rows: Any, columns: int) -> tvm.IRModule:
    """Return gelu(layer_norm(x + r)), its bindings in no dataflow block."""
    params = [*_rows(rows, columns, "x", "r"), *_affine(columns)]
    return module(params, _add_norm_gelu, dataflow=False)


@_graph(lambda x, r, gamma, beta: [x + r, layer_norm(x + r, gamma, beta)], stock=2)
def residual_and_norm(rows: Any, columns: int) -> tvm.IRModule:
    """Return s = x + r, and layer_norm(s)."""

    def body(b: relax.BlockBuilder, x: Any, r: Any, gamma: Any, beta: Any) -> list[relax.Expr]:
        s = b.emit(op.add(x, r))
        return [s, op.nn.layer_norm(s, gamma, beta, axes=-1, epsilon=EPSILON)]

    return module([*_rows(rows, columns, "x", "r"), *_affine(columns)], body)


@_graph(lambda x, mask: softmax(0.125 * x + mask), stock=2)
def scale_mask_softmax(rows: Any, columns: int) -> tvm.IRModule:
    """Return softmax(scale * x + mask)."""

    def body(b: relax.BlockBuilder, x: relax.Var, mask: relax.Var) -> relax.Expr:
        scaled = b.emit(op.multiply(x, relax.const(0.125, "float32")))
        return op.nn.softmax(b.emit(op.add(scaled, mask)), -1)

    return module(_rows(rows, columns, "x", "mask"), body)


@_graph(softmax, stock=2, tolerance=1e-3)
def cast_softmax_cast(rows: Any, columns: int) -> tvm.IRModule:
    """Compute softmax of float16 in float32."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        wide = b.emit(op.astype(x, "float32"))
        return op.astype(b.emit(op.nn.softmax(wide, -1)), "float16")

    return module(_rows(rows, columns, "x", dtype="float16"), body)


@_graph(lambda x: [np.exp(x), np.tanh(x)], stock=2)
def exp_and_tanh(rows: Any, columns: int) -> tvm.IRModule:
    """Return exp(x) and tanh(x): siblings without an edge."""
    return module(_rows(rows, columns, "x"), lambda b, x: [op.exp(x), op.tanh(x)])


@_graph(lambda x: x.mean((2, 3)), stock=2)
def global_pool_reshape(rows: Any, columns: int) -> tvm.IRModule:
    """Pool images of 3 x 5 adaptively to one pixel, then drop its axes."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.reshape(b.emit(op.nn.adaptive_avg_pool2d(x, (1, 1))), (rows, columns))

    return module([tensor("x", rows, columns, 3, 5)], body)


@_graph(lambda x: x, stock=1, fewest=0)
def identity_chain(rows: Any, columns: int) -> tvm.IRModule:
    """Transpose, reshape, reshape back, transpose back."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        t = b.emit(op.permute_dims(x, [1, 0]))
        halves = b.emit(op.reshape(t, (2, columns // 2, rows)))
        return op.permute_dims(b.emit(op.reshape(halves, (columns, rows))), [1, 0])

    return module(_rows(rows, columns, "x"), body)


def _group_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    groups = x.reshape(x.shape[0], 4, -1, x.shape[2])
    centred = groups - groups.mean((2, 3), keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean((2, 3), keepdims=True) + EPSILON)
    return scaled.reshape(x.shape) * gamma[:, None] + beta[:, None]


@_graph(_group_norm, stock=1)
def group_norm(rows: Any, columns: int) -> tvm.IRModule:
    """Normalise four groups of channels of five pixels."""

    def body(b: relax.BlockBuilder, x: Any, gamma: Any, beta: Any) -> relax.Expr:
        return op.nn.group_norm(x, gamma, beta, 4, 1, axes=[2], epsilon=EPSILON)

    return module([tensor("x", rows, columns, 5), *_affine(columns)], body)


@_graph(lambda x, y: np.concatenate([np.exp(x), np.tanh(y)], 1), stock=1)
def concat(rows: Any, columns: int) -> tvm.IRModule:
    """Concatenate exp(x) and tanh(y)."""

    def body(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
        return op.concat([b.emit(op.exp(x)), b.emit(op.tanh(y))], axis=1)

    return module(_rows(rows, columns, "x", "y"), body)


def _split_gate(x: np.ndarray) -> np.ndarray:
    gate, value = np.split(x, 2, 1)
    return gate / (1 + np.exp(-gate)) * value


@_graph(_split_gate, stock=1)
def split_gate(rows: Any, columns: int) -> tvm.IRModule:
    """Return silu(first half) * second half."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        halves = b.emit(op.split(x, 2, axis=1))
        gate, value = b.emit(relax.TupleGetItem(halves, 0)), b.emit(relax.TupleGetItem(halves, 1))
        return op.multiply(b.emit(op.nn.silu(gate)), value)

    return module(_rows(rows, columns, "x"), body)
