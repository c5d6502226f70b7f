"""Products with weights along the terms, with small integers as weights, and their references."""

import numpy as np
from group_kernels import extents
from group_kernels import tensor as tensor_of
from tvm import relax

op = relax.op


def const(value, dtype):
    return relax.const(value, dtype)


def nibbles(emit, q, axis):
    """Two numbers of each byte, side by side along an axis."""
    low = emit(op.bitwise_and(q, const(15, str(q.ty.dtype.dtype))))
    high = emit(op.right_shift(q, const(4, str(q.ty.dtype.dtype))))
    parts = [emit(op.expand_dims(x, axis + 1)) for x in (low, high)]
    rows, columns = (int(d) for d in q.ty.shape)
    wide = (rows, 2 * columns) if axis else (2 * rows, columns)
    return emit(op.reshape(emit(op.concat(parts, axis + 1)), wide))


def unpacked(q, axis):
    shape = list(q.shape)
    shape[axis] *= 2
    return np.stack([q & 15, q >> 4], axis + 1).reshape(shape).astype("float64")


def int4(rows, terms, columns, axis, is_transposed, dtype="float16", zero=8.0, size=16):
    """A product with groups of ``size`` terms that share a scale.

    Parameters
    ----------
    axis : int
        Of the weights, along which bytes hold two.
    is_transposed : bool
        Whether the weights lie along the terms.
    """
    shape = [columns, terms] if is_transposed else [terms, columns]
    along = 1 if is_transposed else 0
    packed, scales = list(shape), list(shape)
    packed[axis] //= 2
    scales[along] //= size
    split = [*shape[:along], shape[along] // size, size, *shape[along + 1 :]]
    given = [
        tensor_of("x", rows, terms, dtype=dtype),
        tensor_of("q", *packed, dtype="uint8"),
        tensor_of("s", *scales, dtype=dtype),
    ]

    def body(emit, x, q, s):
        w = emit(op.subtract(emit(op.astype(nibbles(emit, q, axis), dtype)), const(zero, dtype)))
        w = emit(op.multiply(emit(op.reshape(w, split)), emit(op.expand_dims(s, along + 1))))
        w = emit(op.reshape(w, shape))
        return op.matmul(x, emit(op.permute_dims(w)) if is_transposed else w, "float32")

    def reference(x, q, s):
        w = (unpacked(q, axis) - zero) * np.repeat(s, size, along)
        return [x @ (w.T if is_transposed else w)]

    return given, body, reference


def int8(rows, terms, columns, is_transposed, dtype="float16"):
    shape = (columns, terms) if is_transposed else (terms, columns)
    given = [
        tensor_of("x", rows, terms, dtype=dtype),
        tensor_of("q", *shape, dtype="int8"),
        tensor_of("s", *((columns, 1) if is_transposed else (columns,)), dtype=dtype),
    ]

    def body(emit, x, q, s):
        w = emit(op.multiply(emit(op.astype(q, dtype)), s))
        return op.matmul(x, emit(op.permute_dims(w)) if is_transposed else w, "float32")

    def reference(x, q, s):
        w = q.astype("float64") * s
        return [x @ (w.T if is_transposed else w)]

    return given, body, reference


def along(rows, terms, columns, dtype="float16"):
    """Weights of half types, of which nobody can change the order."""
    given = [tensor_of("x", rows, terms, dtype=dtype), tensor_of("w", columns, terms, dtype=dtype)]

    def body(emit, x, w):
        return op.matmul(x, emit(op.permute_dims(w)), "float32")

    return given, body, lambda x, w: [x @ w.T]


def inputs_of(params):
    rng = np.random.default_rng()

    def make(param):
        dtype = str(param.ty.dtype)
        if "int" in dtype:
            info = np.iinfo(dtype)
            return rng.integers(info.min, info.max, extents(param.ty), dtype, endpoint=True)
        return rng.standard_normal(extents(param.ty)).astype(dtype)

    return {p.name: make(p) for p in params}
