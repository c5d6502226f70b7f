"""Graphs of attention and what they compute, in float64."""

import ml_dtypes
import numpy as np
import tvm
from group_kernels import tensor
from tvm import relax, tirx

op = relax.op
n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
LOWEST = float(np.finfo("float32").min)


def number(value, dtype="float32"):
    return relax.const(np.array(value, dtype))


def written_out(emit, scores):
    shifted = emit(op.subtract(scores, emit(op.max(scores, -1, True))))
    exponentials = emit(op.exp(shifted))
    return emit(op.divide(exponentials, emit(op.sum(exponentials, -1, True))))


def guarded(emit, weights, instead=0.0):
    return emit(op.where(emit(op.isnan(weights)), number(instead), weights))


def with_zeros(emit, scores, weights):
    """Zeros in rows of minus infinity alone; others that are NaN stay NaN."""
    dtype = str(scores.ty.dtype)
    lowest = number(float(ml_dtypes.finfo(dtype).min), dtype)
    is_dead = emit(op.less(scores, lowest))
    return emit(op.where(is_dead, number(0.0, str(weights.ty.dtype)), weights))


def safe(emit, q, k, v, mask):
    """Attention with PyTorch's safe softmax."""
    across = emit(op.permute_dims(k, [0, 1, 3, 2]))
    scores = emit(op.add(emit(op.matmul(q, across)), mask))
    weights = with_zeros(emit, scores, emit(op.nn.softmax(scores, -1)))
    return emit(op.matmul(weights, v))


def safe_arrays(q, k, v, mask):
    with np.errstate(invalid="ignore"):
        scores = q @ np.swapaxes(k, -1, -2) + mask
        e = np.exp(scores - scores.max(-1, keepdims=True))
        is_dead = (scores == -np.inf).all(-1, keepdims=True)
        return [np.where(is_dead, 0, e / e.sum(-1, keepdims=True)) @ v]


def spoil(inputs):
    """Put NaN and infinities next to a dead row: in four heads, at least three queries each."""
    mask = inputs["mask"]
    mask[:] = np.where(mask > 0, 0, -np.inf)
    mask[..., 1, :] = -np.inf
    mask[..., 0, 5] = mask[..., 2, 9] = 0
    inputs["q"][:, 0, 0, 3], inputs["q"][:, 1, 2, 1] = np.nan, np.inf
    inputs["q"][:, 0, 2, 3] = -np.inf
    inputs["k"][:, 1, 5, 2] = np.nan
    inputs["v"][:, 2, 9, 4] = np.nan
    mask[:, 3:, 2, 7], mask[:, 3:, 0, 9] = np.inf, np.nan


def safe_tensors(queries, keys, size, dtype="float32"):
    mask = tensor("mask", 1, 4, queries, keys, dtype=dtype)
    return [*tensors(1, 4, queries, keys, size, dtype=dtype), mask]


def heads(emit, x, count):
    """Split the last axis of ``[batch, length, count * size]`` into heads."""
    batch, length, size = x.ty.shape
    split = emit(op.reshape(x, (batch, length, count, size // count)))
    return emit(op.permute_dims(split, [0, 2, 1, 3]))


def attention(
    score=lambda emit, s, *extra: s,
    normal=lambda emit, s: emit(op.nn.softmax(s, -1)),
    weigh=lambda emit, p, *extra: p,
    finish=lambda emit, x, *extra: x,
):
    """Body of an attention over ``q, k, v`` of ``[batch, heads, length, size]``."""

    def body(emit, q, k, v, *extra):
        across = emit(op.permute_dims(k, [*range(q.ty.ndim - 2), q.ty.ndim - 1, q.ty.ndim - 2]))
        scores = score(emit, emit(op.matmul(q, across)), *extra)
        weights = weigh(emit, normal(emit, scores), *extra)
        return finish(emit, emit(op.matmul(weights, v)), *extra)

    return body


def reference(score=lambda s, *extra: s, weigh=lambda p, *extra: p, finish=lambda x, *extra: x):
    """What :func:`attention` gives, by numpy."""

    def compute(q, k, v, *extra):
        scores = score(q @ np.swapaxes(k, -1, -2), *extra)
        with np.errstate(invalid="ignore"):
            e = np.exp(scores - scores.max(-1, keepdims=True))
            weights = weigh(e / e.sum(-1, keepdims=True), *extra)
        return [finish(weights @ v, *extra)]

    return compute


def tensors(batch, count, queries, keys, size, columns=None, dtype="float32"):
    return [
        tensor("q", batch, count, queries, size, dtype=dtype),
        tensor("k", batch, count, keys, size, dtype=dtype),
        tensor("v", batch, count, keys, columns or size, dtype=dtype),
    ]


def scaled(emit, s, *_):
    return emit(op.multiply(s, number(0.125, str(s.ty.dtype))))


def added(emit, s, mask):
    return emit(op.add(scaled(emit, s), mask))


def kept(emit, s, mask):
    return emit(op.where(emit(op.greater(mask, number(0.0))), s, number(-np.inf)))


def causal(emit, s):
    row = emit(op.reshape(emit(op.arange(19, dtype="int64")), (19, 1)))
    keys = emit(op.reshape(emit(op.arange(33, dtype="int64")), (1, 33)))
    visible = emit(op.less_equal(keys, row))
    return emit(op.where(visible, s, number(LOWEST)))


def capped(emit, s):
    return emit(op.multiply(emit(op.tanh(emit(op.divide(s, number(5.0))))), number(5.0)))


def to_rows(emit, x, *_):
    """Concatenate the heads for the projection that follows."""
    batch, count, length, size = x.ty.shape
    moved = emit(op.permute_dims(x, [0, 2, 1, 3]))
    return emit(op.reshape(moved, (batch, length, count * size)))


def as_rows(x, *_):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def tripled(emit, x, mask):
    return emit(op.add(emit(op.multiply(x, number(3.0))), x))


def with_causal_mask(s):
    return np.where(np.arange(33) <= np.arange(19)[:, None], s, LOWEST)


def grouped(emit, q, k, v):
    """Twelve heads of queries share three of keys and values."""

    def spread(x):
        wide = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (2, 3, 4, 21, 40)))
        return emit(op.reshape(wide, (2, 12, 21, 40)))

    across = emit(op.permute_dims(spread(k), [0, 1, 3, 2]))
    weights = emit(op.nn.softmax(emit(op.matmul(q, across)), -1))
    return op.matmul(weights, spread(v))


def grouped_arrays(q, k, v):
    return reference()(q, np.repeat(k, 4, 1), np.repeat(v, 4, 1))


def rotated(emit, q, k, v, cos, sin):
    """Rotary embedding of queries and keys, a scale on both."""

    def rotate(x):
        low = emit(op.strided_slice(x, [3], [0], [16]))
        high = emit(op.strided_slice(x, [3], [16], [32]))
        turned = emit(op.concat([emit(op.negative(high)), low], 3))
        both = emit(op.add(emit(op.multiply(x, cos)), emit(op.multiply(turned, sin))))
        return emit(op.multiply(both, number(0.4)))

    return attention()(emit, rotate(q), rotate(k), v)


def rotated_arrays(q, k, v, cos, sin):
    def rotate(x):
        turned = np.concatenate([-x[..., 16:], x[..., :16]], -1)
        return (x * cos + turned * sin) * np.float64(np.float32(0.4))

    return reference()(rotate(q), rotate(k), v)


def projected(emit, q, k, v):
    """Heads taken out of rows and put back."""
    q, k, v = (heads(emit, x, 3) for x in (q, k, v))
    return attention(score=scaled, finish=to_rows)(emit, q, k, v)


def projected_arrays(q, k, v):
    q, k, v = (x.reshape(*x.shape[:2], 3, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    return reference(lambda s: s / 8, finish=as_rows)(q, k, v)


def one_matrix(emit, q, k, v):
    """One head without a batch, scores in two dimensions."""
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [1, 0]))))
    return op.matmul(emit(op.nn.softmax(scores, -1)), v)


def arange(count):
    return op.arange(count, dtype="int64")


def visible(queries, keys, offset=0, window=None, fill=-np.inf, mask=False):
    """Attention of keys up to ``row + offset``, from ``row - window`` on."""

    def constant(value):
        return relax.const(tvm.runtime.tensor(np.array(value, "int64")))

    def score(emit, s, *masks):
        row = emit(op.reshape(emit(arange(queries)), (queries, 1)))
        key = emit(op.reshape(emit(arange(keys)), (1, keys)))
        seen = emit(op.less_equal(key, emit(op.add(row, constant(offset)))))
        if window is not None:
            near = emit(op.greater(key, emit(op.subtract(row, constant(window)))))
            seen = emit(op.logical_and(seen, near))
        dtype = str(s.ty.dtype)
        scaled = emit(op.multiply(s, relax.const(np.array(0.125, dtype))))
        s = emit(op.where(seen, scaled, relax.const(np.array(fill, dtype))))
        return emit(op.add(s, masks[0])) if masks else s

    def expected(s, *masks):
        row, key = np.arange(queries)[:, None], np.arange(keys)
        seen = key <= row + offset
        if window is not None:
            seen &= key > row - window
        s = np.where(seen, s / 8, fill)
        return s + masks[0] if masks else s

    return attention(score=score), reference(expected)


def packed(offsets, is_causal=False):
    """Attention inside of packed sequences: the first and the last key of each row are inputs."""
    total = offsets[-1]

    def score(emit, s, begin, end):
        key = emit(op.reshape(emit(arange(total)), (1, total)))
        after = emit(op.greater_equal(key, emit(op.reshape(begin, (total, 1)))))
        before = emit(op.less(key, emit(op.reshape(end, (total, 1)))))
        seen = emit(op.logical_and(after, before))
        if is_causal:
            row = emit(op.reshape(emit(arange(total)), (total, 1)))
            seen = emit(op.logical_and(seen, emit(op.less_equal(key, row))))
        dtype = str(s.ty.dtype)
        return emit(op.where(seen, s, relax.const(np.array(-np.inf, dtype))))

    def expected(s, begin, end):
        key, row = np.arange(total)[None], np.arange(total)[:, None]
        seen = (key >= begin[:, None]) & (key < end[:, None])
        return np.where(seen & (key <= row) if is_causal else seen, s, -np.inf)

    def edit(inputs):
        of_row = np.searchsorted(offsets, np.arange(total), side="right")
        inputs["begin"][:], inputs["end"][:] = (
            np.take(offsets, of_row - 1),
            np.take(offsets, of_row),
        )

    return attention(score=score), reference(expected), edit


def beside_sink(emit, q, k, v, mask, sink):
    """Attention with a mask, and a score besides those of the keys that has no value."""

    def weigh(emit, s):
        batch, count, queries, keys = s.ty.shape
        column = emit(op.broadcast_to(sink, (batch, count, queries, 1)))
        weights = emit(op.nn.softmax(emit(op.concat([s, column], 3)), -1))
        return emit(op.strided_slice(weights, [3], [0], [keys]))

    return attention(score=added, normal=weigh)(emit, q, k, v, mask)


def beside_sink_arrays(q, k, v, mask, sink):
    """The sink is a key of its own, whose value is zeros."""
    zeros = np.zeros((*v.shape[:2], 1, v.shape[3]))

    def score(s):
        s = s[..., :-1] / 8 + mask
        return np.concatenate([s, np.broadcast_to(sink, (*s.shape[:3], 1))], -1)

    k = np.concatenate([k, np.zeros((*k.shape[:2], 1, k.shape[3]))], 2)
    return reference(score)(q, k, np.concatenate([v, zeros], 2))


def beside_sink_tensors(queries, keys, size, dtype="float32"):
    mask = tensor("mask", 1, 1, queries, keys, dtype=dtype)
    sink = tensor("sink", 1, 3, 1, 1, dtype=dtype)
    return [*tensors(1, 3, queries, keys, size, dtype=dtype), mask, sink]


PLAIN = (attention(), reference())
SINK = (beside_sink, beside_sink_arrays)
MASKED = (
    attention(score=added, weigh=lambda emit, p, mask: guarded(emit, p)),
    reference(lambda s, mask: s / 8 + mask),
)

CASES = {
    "plain": (tensors(2, 3, 13, 21, 16), *PLAIN),
    "another size of values": (tensors(1, 2, 7, 37, 40, 80), *PLAIN),
    "head of 32": (tensors(1, 2, 19, 50, 32), *PLAIN),
    "head of 64": (tensors(2, 3, 65, 65, 64), *PLAIN),
    "head of 128": (tensors(1, 2, 9, 70, 128), *PLAIN),
    "head of 256": (tensors(1, 1, 7, 33, 256), *PLAIN),
    "many keys": (tensors(1, 2, 25, 1500, 64), *PLAIN),
    "many queries": (tensors(1, 1, 333, 40, 24), *PLAIN),
    "one query": (tensors(2, 3, 1, 77, 64), *PLAIN),
    "two queries": (tensors(1, 3, 2, 18, 17), *PLAIN),
    "one matrix": (
        [tensor("q", 9, 20), tensor("k", 31, 20), tensor("v", 31, 12)],
        one_matrix,
        PLAIN[1],
    ),
    "scale and mask": ([*tensors(2, 3, 13, 40, 32), tensor("mask", 2, 1, 13, 40)], *MASKED),
    "padding": ([*tensors(2, 3, 13, 40, 32), tensor("mask", 2, 1, 1, 40)], *MASKED),
    "bias of heads": ([*tensors(2, 3, 13, 40, 32), tensor("mask", 1, 3, 13, 40)], *MASKED),
    "mask by choice": (
        [*tensors(1, 3, 13, 40, 32), tensor("mask", 1, 1, 13, 40)],
        attention(score=kept),
        reference(lambda s, mask: np.where(mask > 0, s, -np.inf)),
    ),
    "causal": (tensors(1, 2, 19, 33, 24), attention(score=causal), reference(with_causal_mask)),
    "soft cap": (
        tensors(1, 2, 19, 33, 24),
        attention(score=capped),
        reference(lambda s: np.tanh(s / 5) * 5),
    ),
    "sink": (beside_sink_tensors(13, 40, 32), *SINK),
    "softmax written out": (
        [*tensors(2, 3, 13, 40, 32), tensor("mask", 1, 1, 13, 40)],
        attention(score=added, normal=written_out),
        reference(lambda s, mask: s / 8 + mask),
    ),
    "weights scaled": (
        [*tensors(2, 3, 13, 40, 32), tensor("mask", 1, 1, 13, 40)],
        attention(weigh=lambda emit, p, mask: emit(op.multiply(p, mask))),
        reference(weigh=lambda p, mask: p * mask),
    ),
    "results mapped": (
        [*tensors(1, 3, 13, 40, 32), tensor("mask", 1)],
        attention(finish=tripled),
        reference(finish=lambda x, mask: x * 4),
    ),
    "heads in rows": (
        [tensor("q", 2, 19, 72), tensor("k", 2, 23, 72), tensor("v", 2, 23, 120)],
        projected,
        projected_arrays,
    ),
    "grouped queries": (
        [tensor("q", 2, 12, 17, 40), tensor("k", 2, 3, 21, 40), tensor("v", 2, 3, 21, 40)],
        grouped,
        grouped_arrays,
    ),
    "rotary": (
        [
            *tensors(1, 3, 14, 14, 32),
            tensor("cos", 1, 1, 14, 32),
            tensor("sin", 1, 1, 14, 32),
        ],
        rotated,
        rotated_arrays,
    ),
}

SYMBOLIC = {
    "queries": (tensors(2, 3, n, 21, 16), *PLAIN),
    "keys": (tensors(2, 3, 23, m, 16), *PLAIN),
    "both": ([*tensors(1, 2, n, m, 40), tensor("mask", 1, 1, n, m)], *MASKED),
    "one length": ([*tensors(1, 2, n, n, 64), tensor("mask", 1, 1, 1, n)], *MASKED),
    "batch": (tensors(m, 2, 19, n, 24), *PLAIN),
    "heads in rows": (
        [tensor("q", 1, n, 72), tensor("k", 1, m, 72), tensor("v", 1, m, 72)],
        projected,
        projected_arrays,
    ),
}
