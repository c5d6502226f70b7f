"""A small graph of every kind of kernel, with what it computes in float64.

Sizes are odd where kernels allow it, and small: instructions are interpreted.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from .case import FLOAT, FLOATS, INT8, Case, Inputs

op = relax.op


def _soft(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


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


def _exact_product(emit: Any, x: Any, w: Any) -> Any:
    return op.matmul(x, w, out_dtype="int32")


def _exact_product_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.matmul(x.astype("int64"), w.astype("int64"))


def _requantised(emit: Any, x: Any, w: Any) -> Any:
    scaled = emit(op.astype(emit(_exact_product(emit, x, w)), "float32"))
    levels = emit(op.round(emit(op.multiply(scaled, relax.const(2.0**-11, "float32")))))
    return op.astype(emit(op.clip(levels, -128, 127)), INT8)


def _requantised_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.clip(np.round(_exact_product_of(x, w) * 2.0**-11), -128, 127)


def _exact_convolution_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.rint(_convolved(x.astype("float64"), w.astype("float64"))).astype("int64")


def _inputs(*given: tuple[Any, ...]) -> Inputs:
    return tuple((name, shape, *(kind or (FLOAT,))) for name, shape, *kind in given)  # type: ignore[misc]


def _product(rows: int | str, terms: int, columns: int) -> Inputs:
    return _inputs(("x", (rows, terms)), ("w", (terms, columns)), ("b", (columns,)))


def _bytes(*given: tuple[Any, ...]) -> Inputs:
    return _inputs(*((name, shape, INT8) for name, shape in given))


def _heads(queries: int | str, keys: int | str, size: int = 32) -> Inputs:
    k = (1, 2, keys, size)
    return _inputs(("q", (1, 2, queries, size)), ("k", k), ("v", k))


CASES: Mapping[str, Case] = {
    "softmax": Case(
        _inputs(("x", ("n", 1001))), lambda emit, x: op.nn.softmax(x, -1),
        lambda x: _soft(x), {"n": 3},
    ),
    "softmax of short rows": Case(
        _inputs(("x", ("n", 17))), lambda emit, x: op.nn.softmax(x, -1),
        lambda x: _soft(x), {"n": 37},
    ),
    "softmax of rows of any length": Case(
        _inputs(("x", (5, "n"))), lambda emit, x: op.nn.softmax(x, -1),
        lambda x: _soft(x), {"n": 129},
    ),
    "log-softmax": Case(
        _inputs(("x", ("n", 515))), lambda emit, x: op.nn.log_softmax(x, -1),
        lambda x: np.log(_soft(x)), {"n": 3},
    ),
    "layer norm": Case(
        _inputs(("x", ("n", 770)), ("g", (770,)), ("b", (770,))),
        lambda emit, x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
        lambda x, g, b: _standard(x) * g + b, {"n": 5},
    ),
    "residual + RMS norm": Case(
        _inputs(("x", ("n", 1024)), ("r", ("n", 1024)), ("g", (1024,))), _residual_norm,
        lambda x, r, g: _rms(x + r) * g, {"n": 3},
    ),
    "group norm + SiLU": Case(
        _inputs(("x", ("n", 6, 7, 5)), ("g", (6,)), ("b", (6,))), _group_norm, _group_norm_of,
        {"n": 2}, dtypes=("float32", "float16", INT8),
    ),
    "GEMV + bias + SiLU": Case(_product(1, 512, 72), _biased, _biased_of, tolerance=64),
    "skinny GEMM": Case(_product("n", 513, 72), _biased, _biased_of, {"n": 5}, tolerance=64),
    "GEMM": Case(_product("n", 45, 70), _biased, _biased_of, {"n": 37}, tolerance=64),
    "GEMM of aligned rows": Case(
        _product("n", 72, 136), _biased, _biased_of, {"n": 67}, tolerance=64
    ),
    "batched GEMM": Case(
        _inputs(("x", ("n", 19, 33)), ("w", ("n", 33, 21))), lambda emit, x, w: op.matmul(x, w),
        lambda x, w: x @ w, {"n": 3}, tolerance=64,
    ),
    "batched GEMM of even rows": Case(
        _inputs(("x", (3, "n", 34)), ("w", (3, 34, 22))), lambda emit, x, w: op.matmul(x, w),
        lambda x, w: x @ w, {"n": 19}, tolerance=64,
    ),
    "GEMM with terms of any number": Case(
        _inputs(("x", (3, 19, "n")), ("w", (3, "n", 24))), lambda emit, x, w: op.matmul(x, w),
        lambda x, w: x @ w, {"n": 35}, tolerance=64,
    ),
    "RMS norm + GEMV": Case(
        _inputs(("x", ("n", 512)), ("g", (512,)), ("w", (512, 72))), _norm_product,
        lambda x, g, w: _rms(x) * g @ w, {"n": 1}, tolerance=64,
    ),
    "int8 GEMV": Case(
        _inputs(("x", ("n", 256)), ("q", (256, 72), "int8"), ("s", (72,))), _int8_product,
        lambda x, q, s: x @ (q.astype("float64") * s), {"n": 1}, tolerance=64, dtypes=FLOATS,
    ),
    "int4 GEMV": Case(
        _inputs(("x", ("n", 256)), ("q", (128, 72), "uint8"), ("s", (16, 72))), _int4_product,
        _int4_product_of, {"n": 1}, tolerance=64, dtypes=FLOATS,
    ),
    "element-wise": Case(_inputs(("x", ("n", 129))), _gates, _gates_of, {"n": 33}),
    "transpose": Case(
        _inputs(("x", ("n", 131))), _moved, lambda x: np.maximum(x.T, 0), {"n": 70}
    ),
    "slice + concat": Case(
        _inputs(("x", ("n", 33)), ("y", ("n", 17))), _joined,
        lambda x, y: np.tanh(np.concatenate([x[:, 3:31], y], 1)), {"n": 9},
    ),
    "gather": Case(
        _inputs(("x", (9, 66)), ("ids", ("n", 3), "int32")),
        lambda emit, x, ids: op.take(x, ids, 0), lambda x, ids: x[ids], {"n": 5},
    ),
    "attention": Case(
        _heads("n", "n"), _attention, _attention_of, {"n": 67}, tolerance=64
    ),
    "masked attention": Case(
        (*_heads(17, "n"), ("m", (17, "n"), FLOAT)), _masked_attention,
        lambda q, k, v, m: _soft(q @ k.swapaxes(-1, -2) + m) @ v, {"n": 35}, tolerance=64,
    ),
    "decode attention": Case(
        _heads(1, "n"), _attention, _attention_of, {"n": 320}, tolerance=64
    ),
    "scan": Case(
        _inputs(("x", ("n", 517))), lambda emit, x: op.cumsum(x, 1), lambda x: x.cumsum(1),
        {"n": 3}, tolerance=256,
    ),
    "argmax": Case(
        _inputs(("x", ("n", 301))), lambda emit, x: op.argmax(x, 1), lambda x: x.argmax(1),
        {"n": 7},
    ),
    "sum of columns": Case(
        _inputs(("x", ("n", 35))), lambda emit, x: op.sum(x, 0), lambda x: x.sum(0),
        {"n": 131}, tolerance=64,
    ),
    "convolution": Case(
        _inputs(("x", ("n", 5, 9, 11)), ("w", (7, 5, 3, 3)), ("b", (7,))), _convolution,
        lambda x, w, b: np.maximum(_convolved(x, w) + b[:, None, None], 0), {"n": 1},
        tolerance=64,
    ),
    "depthwise convolution": Case(
        _inputs(("x", ("n", 6, 9, 11)), ("w", (6, 1, 3, 3))),
        lambda emit, x, w: op.nn.conv2d(x, w, padding=1, groups=6),
        lambda x, w: _convolved(x, w, 6), {"n": 1}, tolerance=64,
    ),
    "max pool": Case(
        _inputs(("x", ("n", 5, 11, 13))),
        lambda emit, x: op.nn.max_pool2d(x, (3, 3), (2, 2)),
        lambda x: _windows(x, 3, 2).max((4, 5)), {"n": 1},
    ),
    "average pool": Case(
        _inputs(("x", ("n", 5, 7, 7))),
        lambda emit, x: op.nn.avg_pool2d(x, (7, 7)),
        lambda x: _windows(x, 7, 7).mean((4, 5)), {"n": 2},
    ),
    "GEMM of bytes": Case(
        _bytes(("x", ("n", 45)), ("w", (45, 70))), _exact_product, _exact_product_of,
        {"n": 37}, dtypes=(INT8,),
    ),
    "GEMM of bytes + requantising": Case(
        _bytes(("x", ("n", 64)), ("w", (64, 72))), _requantised, _requantised_of, {"n": 35},
        dtypes=(INT8,),
    ),
    "batched GEMM of bytes": Case(
        _bytes(("x", (3, "n", 32)), ("w", (3, 32, 24))), _exact_product, _exact_product_of,
        {"n": 19}, dtypes=(INT8,),
    ),
    "skinny GEMM of bytes": Case(
        _bytes(("x", ("n", 256)), ("w", (256, 72))), _exact_product, _exact_product_of,
        {"n": 3}, dtypes=(INT8,),
    ),
    "convolution of bytes": Case(
        _bytes(("x", ("n", 5, 9, 11)), ("w", (7, 5, 3, 3))),
        lambda emit, x, w: op.nn.conv2d(x, w, padding=1, out_dtype="int32"),
        _exact_convolution_of, {"n": 1}, dtypes=(INT8,),
    ),
    "transpose of bytes": Case(
        _bytes(("x", ("n", 131))), lambda emit, x: op.permute_dims(x, [1, 0]),
        lambda x: x.T, {"n": 70}, dtypes=(INT8,),
    ),
}  # fmt: skip
