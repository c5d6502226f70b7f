"""Products whose epilogues read several columns: gated layers, rotary; and their references."""

import math

import numpy as np
from group_kernels import tensor
from tvm import relax

op = relax.op
erf = np.vectorize(math.erf)


def columns(emit, x, *ends):
    """Split columns at some of them."""
    split = emit(op.split(x, list(ends), axis=-1))
    return [emit(relax.TupleGetItem(split, i)) for i in range(len(ends) + 1)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


GATES = {
    "silu": (op.nn.silu, lambda x: x * sigmoid(x)),
    "sigmoid": (op.sigmoid, sigmoid),
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "gelu": (op.nn.gelu, lambda x: x / 2 * (1 + erf(x / np.sqrt(2)))),
    "gelu_tanh": (op.nn.gelu_tanh, gelu_tanh),
}


def gated(m, k, n, gate="silu", is_turned=True, has_bias=False, dtype="float16"):
    """A gated layer: the weight is ``[2n, k]`` where it is turned; each part has a bias."""
    given = [tensor("x", *(m if isinstance(m, tuple) else (m,)), k, dtype=dtype)]
    given.append(tensor("w", *((2 * n, k) if is_turned else (k, 2 * n)), dtype=dtype))
    given += [tensor("b", 2 * n, dtype=dtype)] if has_bias else []
    act, exact = GATES[gate]

    def body(emit, x, w, *bias):
        total = emit(op.matmul(x, emit(op.permute_dims(w)) if is_turned else w, "float32"))
        for b in bias:
            total = emit(op.add(total, emit(op.astype(b, "float32"))))
        left, right = columns(emit, total, n)
        return op.astype(emit(op.multiply(emit(act(left)), right)), dtype)

    def reference(x, w, *bias):
        left, right = np.split(x @ (w.T if is_turned else w) + sum(bias), 2, axis=-1)
        return [exact(left) * right]

    return given, body, reference


def heads(emit, x, first, last, dim, rotation=None):
    """Columns as heads; halves of each rotated, where there is a rotation."""
    x = emit(op.strided_slice(x, [2], [first], [last], [1]))
    batch, rows, width = x.ty.shape.values
    x = emit(op.reshape(x, (batch, rows, int(width) // dim, dim)))
    x = emit(op.permute_dims(x, [0, 2, 1, 3]))
    if rotation is None:
        return x
    cos, sin = rotation
    begin = emit(op.strided_slice(x, [3], [0], [dim // 2], [1]))
    end = emit(op.strided_slice(x, [3], [dim // 2], [dim], [1]))
    turned = emit(op.concat([emit(op.negative(end)), begin], axis=-1))
    return op.add(emit(op.multiply(x, cos)), emit(op.multiply(turned, sin)))


def rotated(emit, x, w, cos, sin):
    """Three heads of queries and one of keys, rotated; one of values, not."""
    total = emit(op.matmul(x, w))
    dim = int(w.ty.shape[1]) // 5
    values = heads(emit, total, 4 * dim, 5 * dim, dim)
    around = [heads(emit, total, a * dim, b * dim, dim, (cos, sin)) for a, b in ((0, 3), (3, 4))]
    return [values, *around]


def rotated_reference(x, w, cos, sin):
    dim = w.shape[1] // 5
    y = (x @ w).reshape(*x.shape[:2], 5, dim).transpose(0, 2, 1, 3)
    begin, end = np.split(y, 2, axis=-1)
    turned = y * cos + np.concatenate([-end, begin], axis=-1) * sin
    return [y[:, 4:], turned[:, :3], turned[:, 3:4]]
