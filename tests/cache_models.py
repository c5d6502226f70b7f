"""A small model over a cache and a state, as a Relax module for one token or several."""

import numpy as np
import tvm
from tvm import relax

op = relax.op
VOCABULARY, PLACES, WIDTH, MOST = 11, 9, 16, 4
TABLE = np.random.default_rng(3).standard_normal((VOCABULARY, WIDTH)).astype("float32")
WEIGHT = np.random.default_rng(4).standard_normal((WIDTH, WIDTH)).astype("float32")
IN_PLACE = {"cache": "output_1", "total": "output_2"}


def int64(number):
    return relax.const(number, "int64")


def copied(emit, cache, numbers, values, axis=0):
    """``cache.index_copy(axis, numbers, values)``, as PyTorch's is imported."""
    shape = cache.ty.shape.values
    extent, count = int(shape[axis]), numbers.ty.shape.values[0]
    behind = [1] * (len(shape) - axis - 1)
    less = emit(op.less(numbers, int64(0)))
    start = emit(op.where(less, emit(op.add(numbers, int64(extent))), numbers))
    hit = op.equal(int64(np.arange(extent)[:, None]), emit(op.expand_dims(start, 0)))
    if isinstance(count, tvm.tirx.IntImm) and int(count) == 1:
        return emit(op.where(emit(op.reshape(emit(hit), [extent, *behind])), values, cache))
    listed = emit(op.expand_dims(emit(op.arange(0, count, 1, dtype="int64")), 0))
    place = emit(op.max(emit(op.where(emit(hit), listed, int64(-1))), axis=1))
    taken = op.take(values, emit(op.maximum(place, int64(0))), axis=axis, mode="clip")
    written = emit(op.greater_equal(place, int64(0)))
    return emit(op.where(emit(op.reshape(written, [extent, *behind])), emit(taken), cache))


def step(tokens: int | str) -> tvm.IRModule:
    """``cache[position + i] = table[ids[i]]``; ``total`` is halved, and the new rows are added.

    The result is the cache's sum times a matrix, plus the new total.
    """
    count = tvm.tirx.Var(tokens, "int64") if isinstance(tokens, str) else tokens
    builder = relax.BlockBuilder()
    ids, position, cache, total = (
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape, dtype in (
            ("ids", (1, count), "int64"),
            ("position", (1,), "int64"),
            ("cache", (PLACES, WIDTH), "float32"),
            ("total", (WIDTH,), "float32"),
        )
    )
    with builder.function("main", [ids, position, cache, total]):
        with builder.dataflow():
            emit = builder.emit
            flat = emit(op.reshape(ids, [count]))
            rows = emit(op.take(relax.const(TABLE), flat, axis=0, mode="clip"))
            numbers = position
            if tokens != 1:
                numbers = emit(op.add(position, emit(op.arange(0, count, 1, dtype="int64"))))
            new = copied(emit, cache, numbers, rows)
            half = emit(op.multiply(total, relax.const(np.float32(0.5))))
            state = emit(op.add(half, emit(op.sum(rows, axis=0))))
            product = emit(op.matmul(emit(op.sum(new, axis=0, keepdims=True)), relax.const(WEIGHT)))
            result = emit(op.add(product, state))
            whole = builder.emit_output(relax.Tuple([result, new, state]))
        builder.emit_func_output(whole)
    return builder.get()


def models():
    """Prefill and decode, for :func:`tvm_fusion.compile`."""
    return {"prefill": step("tokens"), "decode": step(1)}


def reference(ids, position, cache, total):
    """Change a cache and a total as a step does, and return its result."""
    rows = TABLE[ids[0]]
    cache[position : position + len(rows)] = rows
    total[...] = total * 0.5 + rows.sum(0)
    return cache.sum(0, keepdims=True) @ WEIGHT + total
