"""A small graph of every kind of kernel, with what it computes in float64.

Sizes are odd where kernels allow it, and small: instructions are interpreted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

FLOAT = "float"  # stands for the precision that a case is made in
op = relax.op
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Case:
    """One graph."""

    # Name, shape, dtype; letters are symbolic dimensions, ``float`` the precision.
    inputs: tuple[tuple[str, Shape, str], ...]
    body: Callable[..., Any]  # ``(emit, *variables) -> expression``
    reference: Callable[..., np.ndarray]  # the same of float64 (and integer) arrays
    # Extents of symbolic dimensions in the run.
    dims: Mapping[str, int] = field(default_factory=dict)
    # Of results relative to the largest one, in units of the precision's epsilon.
    tolerance: float = 16.0
    has_bfloat16: bool = True  # whether Relax's operators take it

    def module(self, dtype: str) -> tvm.IRModule:
        """Build the graph as a Relax module."""
        symbols = {name: tirx.Var(name, "int64") for name in self.dims}
        builder = relax.BlockBuilder()
        params = [
            relax.Var(
                name,
                relax.TensorType(
                    [symbols.get(d, d) for d in shape],  # type: ignore[call-overload]
                    dtype if kind == FLOAT else kind,
                ),
            )
            for name, shape, kind in self.inputs
        ]
        with builder.function("main", params):
            with builder.dataflow():
                result = builder.emit_output(builder.normalize(self.body(builder.emit, *params)))
            builder.emit_func_output(result)
        return builder.get()

    def arrays(self, dtype: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the inputs; those called ``ids`` are valid indices of nine rows."""
        return {
            name: _drawn(name, [self.dims.get(str(d), d) for d in shape], kind, dtype, rng)
            for name, shape, kind in self.inputs
        }


def _drawn(
    name: str, shape: Sequence[Any], kind: str, dtype: str, rng: np.random.Generator
) -> np.ndarray:
    if kind == FLOAT:
        return rng.standard_normal(shape).astype(dtype)
    if name == "ids":
        return rng.integers(0, 9, shape).astype(kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, shape, kind, endpoint=True)


def _soft(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _standard(x: np.ndarray, axes: int | tuple[int, ...] = -1) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _rms(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def _residual_norm(emit: Any, x: Any, r: Any, g: Any) -> Any:
    return op.nn.rms_norm(emit(op.add(x, r)), g, axes=[-1])


def _norm_product(emit: Any, x: Any, g: Any, w: Any) -> Any:
    return op.matmul(emit(op.nn.rms_norm(x, g, axes=[-1])), w)


def _group_norm(emit: Any, x: Any, g: Any, b: Any) -> Any:
    normed = emit(op.nn.group_norm(x, g, b, num_groups=3, channel_axis=1, axes=[2, 3]))
    return op.nn.silu(normed)


def _group_norm_of(x: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
    grouped = _standard(x.reshape(x.shape[0], 3, -1)).reshape(x.shape)
    y = grouped * g[:, None, None] + b[:, None, None]
    return y * _sigmoid(y)


def _attention(emit: Any, q: Any, k: Any, v: Any) -> Any:
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return op.matmul(emit(op.nn.softmax(scores, -1)), v)


def _attention_of(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return _soft(q @ k.swapaxes(-1, -2)) @ v


def _masked_attention(emit: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return op.matmul(emit(op.nn.softmax(emit(op.add(scores, m)), -1)), v)


def _int8_product(emit: Any, x: Any, q: Any, s: Any) -> Any:
    w = emit(op.multiply(emit(op.astype(q, str(x.ty.dtype.dtype))), s))
    return op.matmul(x, w)


def _int4_product(emit: Any, x: Any, q: Any, s: Any) -> Any:
    dtype = str(x.ty.dtype.dtype)
    low = emit(op.bitwise_and(q, relax.const(15, "uint8")))
    high = emit(op.right_shift(q, relax.const(4, "uint8")))
    parts = [emit(op.expand_dims(part, 1)) for part in (low, high)]
    rows, columns = (int(d) for d in q.ty.shape)
    w = emit(op.reshape(emit(op.concat(parts, 1)), (2 * rows, columns)))
    w = emit(op.subtract(emit(op.astype(w, dtype)), relax.const(8.0, dtype)))
    w = emit(op.reshape(w, (2 * rows // 16, 16, columns)))
    w = emit(op.multiply(w, emit(op.expand_dims(s, 1))))
    return op.matmul(x, emit(op.reshape(w, (2 * rows, columns))))


def _int4_product_of(x: np.ndarray, q: np.ndarray, s: np.ndarray) -> np.ndarray:
    w = np.stack([q & 15, q >> 4], 1).reshape(2 * q.shape[0], -1).astype("float64")
    return x @ ((w - 8) * np.repeat(s, 16, 0))


def _convolved(x: np.ndarray, w: np.ndarray, groups: int = 1, pad: int = 1) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    if groups == 1:
        return np.einsum("nchwij,ocij->nohw", windows, w)
    return np.einsum("nchwij,cij->nchw", windows, w[:, 0])


def _convolution(emit: Any, x: Any, w: Any, b: Any) -> Any:
    y = emit(op.nn.conv2d(x, w, padding=1))
    return op.nn.relu(emit(op.add(y, emit(op.reshape(b, (1, -1, 1, 1))))))


def _windows(x: np.ndarray, size: int, step: int) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return windows[:, :, ::step, ::step]


def _gates(emit: Any, x: Any) -> Any:
    return op.multiply(emit(op.nn.gelu(x)), emit(op.sigmoid(x)))


def _gates_of(x: np.ndarray) -> np.ndarray:
    erf = np.vectorize(__import__("math").erf)
    return x * 0.5 * (1 + erf(x / np.sqrt(2))) * _sigmoid(x)


def _moved(emit: Any, x: Any) -> Any:
    return op.nn.relu(emit(op.permute_dims(x, [1, 0])))


def _joined(emit: Any, x: Any, y: Any) -> Any:
    return op.tanh(emit(op.concat([emit(op.strided_slice(x, [1], [3], [31])), y], 1)))


def _biased(emit: Any, x: Any, w: Any, b: Any) -> Any:
    return op.nn.silu(emit(op.add(emit(op.matmul(x, w)), b)))


def _biased_of(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    y = x @ w + b
    return y * _sigmoid(y)


def _inputs(*given: tuple[Any, ...]) -> tuple[tuple[str, Shape, str], ...]:
    return tuple((name, shape, *(kind or (FLOAT,))) for name, shape, *kind in given)  # type: ignore[misc]


def _product(rows: int | str, terms: int, columns: int) -> tuple[tuple[str, Shape, str], ...]:
    return _inputs(("x", (rows, terms)), ("w", (terms, columns)), ("b", (columns,)))


def _heads(queries: int, keys: int, size: int = 32) -> tuple[tuple[str, Shape, str], ...]:
    k = (1, 2, keys, size)
    return _inputs(("q", (1, 2, queries, size)), ("k", k), ("v", k))


CASES: Mapping[str, Case] = {
    "softmax": Case(
        _inputs(("x", (3, 1001))), lambda emit, x: op.nn.softmax(x, -1), lambda x: _soft(x)
    ),
    "softmax of short rows": Case(
        _inputs(("x", (37, 17))), lambda emit, x: op.nn.softmax(x, -1), lambda x: _soft(x)
    ),
    "softmax of symbolic rows": Case(
        _inputs(("x", ("n", 129))), lambda emit, x: op.nn.softmax(x, -1),
        lambda x: _soft(x), {"n": 5},
    ),
    "log-softmax": Case(
        _inputs(("x", (3, 515))), lambda emit, x: op.nn.log_softmax(x, -1),
        lambda x: np.log(_soft(x)),
    ),
    "layer norm": Case(
        _inputs(("x", (5, 770)), ("g", (770,)), ("b", (770,))),
        lambda emit, x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
        lambda x, g, b: _standard(x) * g + b,
    ),
    "residual + RMS norm": Case(
        _inputs(("x", (3, 1024)), ("r", (3, 1024)), ("g", (1024,))), _residual_norm,
        lambda x, r, g: _rms(x + r) * g,
    ),
    "group norm + SiLU": Case(
        _inputs(("x", (2, 6, 7, 5)), ("g", (6,)), ("b", (6,))), _group_norm, _group_norm_of,
        has_bfloat16=False,
    ),
    "GEMV + bias + SiLU": Case(_product(1, 512, 72), _biased, _biased_of, tolerance=64),
    "skinny GEMM": Case(_product(5, 513, 72), _biased, _biased_of, tolerance=64),
    "GEMM of symbolic rows": Case(
        _product("n", 72, 136), _biased, _biased_of, {"n": 37}, tolerance=64
    ),
    "GEMM": Case(_product(37, 45, 70), _biased, _biased_of, tolerance=64),
    "batched GEMM": Case(
        _inputs(("x", (3, 19, 33)), ("w", (3, 33, 21))), lambda emit, x, w: op.matmul(x, w),
        lambda x, w: x @ w, tolerance=64,
    ),
    "batched GEMM of even rows": Case(
        _inputs(("x", (3, 19, 34)), ("w", (3, 34, 22))), lambda emit, x, w: op.matmul(x, w),
        lambda x, w: x @ w, tolerance=64,
    ),
    "RMS norm + GEMV": Case(
        _inputs(("x", (1, 512)), ("g", (512,)), ("w", (512, 72))), _norm_product,
        lambda x, g, w: _rms(x) * g @ w, tolerance=64,
    ),
    "int8 GEMV": Case(
        _inputs(("x", (1, 256)), ("q", (256, 72), "int8"), ("s", (72,))), _int8_product,
        lambda x, q, s: x @ (q.astype("float64") * s), tolerance=64,
    ),
    "int4 GEMV": Case(
        _inputs(("x", (1, 256)), ("q", (128, 72), "uint8"), ("s", (16, 72))), _int4_product,
        _int4_product_of, tolerance=64,
    ),
    "element-wise": Case(_inputs(("x", (33, 129))), _gates, _gates_of),
    "transpose": Case(
        _inputs(("x", (70, 131))), _moved, lambda x: np.maximum(x.T, 0)
    ),
    "slice + concat": Case(
        _inputs(("x", (9, 33)), ("y", (9, 17))), _joined,
        lambda x, y: np.tanh(np.concatenate([x[:, 3:31], y], 1)),
    ),
    "gather": Case(
        _inputs(("x", (9, 66)), ("ids", (5, 3), "int32")),
        lambda emit, x, ids: op.take(x, ids, 0), lambda x, ids: x[ids],
    ),
    "attention": Case(_heads(67, 67), _attention, _attention_of, tolerance=64),
    "masked attention": Case(
        (*_heads(17, 35), ("m", (17, 35), FLOAT)), _masked_attention,
        lambda q, k, v, m: _soft(q @ k.swapaxes(-1, -2) + m) @ v, tolerance=64,
    ),
    "decode attention": Case(_heads(1, 320), _attention, _attention_of, tolerance=64),
    "scan": Case(
        _inputs(("x", (3, 517))), lambda emit, x: op.cumsum(x, 1), lambda x: x.cumsum(1),
        tolerance=256,
    ),
    "argmax": Case(
        _inputs(("x", (7, 301))), lambda emit, x: op.argmax(x, 1), lambda x: x.argmax(1)
    ),
    "sum of columns": Case(
        _inputs(("x", (131, 35))), lambda emit, x: op.sum(x, 0), lambda x: x.sum(0), tolerance=64
    ),
    "convolution": Case(
        _inputs(("x", (1, 5, 9, 11)), ("w", (7, 5, 3, 3)), ("b", (7,))), _convolution,
        lambda x, w, b: np.maximum(_convolved(x, w) + b[:, None, None], 0), tolerance=64,
    ),
    "depthwise convolution": Case(
        _inputs(("x", (1, 6, 9, 11)), ("w", (6, 1, 3, 3))),
        lambda emit, x, w: op.nn.conv2d(x, w, padding=1, groups=6),
        lambda x, w: _convolved(x, w, 6), tolerance=64,
    ),
    "max pool": Case(
        _inputs(("x", (1, 5, 11, 13))),
        lambda emit, x: op.nn.max_pool2d(x, (3, 3), (2, 2)),
        lambda x: _windows(x, 3, 2).max((4, 5)),
    ),
    "average pool": Case(
        _inputs(("x", (2, 5, 7, 7))),
        lambda emit, x: op.nn.avg_pool2d(x, (7, 7)),
        lambda x: _windows(x, 7, 7).mean((4, 5)),
    ),
}  # fmt: skip
