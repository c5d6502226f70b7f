"""Convert TfIdfVectorizer over numbers of tokens."""

from functools import reduce
from typing import Any

import numpy as np
import onnx
from tvm import relax

from ...registry import Unsupported
from ..node import Node
from ..registry import register

op = relax.op


def _of_strings(node: onnx.NodeProto) -> Unsupported | None:
    if any(a.name == "pool_strings" and a.strings for a in node.attribute):
        return Unsupported("of strings", "give the tokens numbers on the host")
    return None


@register("TfIdfVectorizer", refuses=_of_strings)
def tf_idf_vectorizer(node: Node) -> Any:
    """Convert TfIdfVectorizer: compare the n-grams of the input with all those of the pool.

    ::

        count[g] = number of windows w (any start, any skip) whose tokens are those of n-gram g
        y[index[g]] = count[g] (TF), weight[g] if count[g] > 0 (IDF), count[g] * weight[g] (TFIDF)
    """
    shape = node.static_shape()
    starts = [*node.attribute("ngram_counts"), len(node.attribute("pool_int64s"))]
    pool = np.array(node.attribute("pool_int64s"), "int64")
    indexes = np.array(node.attribute("ngram_indexes"))
    low, high = node.attribute("min_gram_length"), node.attribute("max_gram_length")
    skips = node.attribute("max_skip_count")
    mode = node.attribute("mode")
    weights = np.array(node.attribute("weights") or np.ones(len(indexes)), "float32")
    if len({*indexes}) != len(indexes):
        raise Unsupported("with one index for two n-grams", "give each an index of its own")
    # ONNX has the weights in the order of the n-grams, its reference and ONNX Runtime in that of
    # the outputs.
    same = len(weights) == len(indexes) == indexes.max() + 1 and (weights[indexes] == weights).all()
    if mode != "TF" and not same and len({*weights.tolist()}) > 1:
        raise Unsupported("with weights in another order than the outputs", "sort the n-grams")
    if len(shape) not in (1, 2):
        raise Unsupported(f"of rank {len(shape)}", "give it one or two axes")
    if "int" not in node.dtype():
        raise Unsupported(f"of {node.dtype()}", "give the tokens numbers of int32 or int64")
    x = node.emit(op.astype(node.inputs[0], "int64"))
    batch, length = shape[:-1], shape[-1]
    counts = []
    for n in range(1, len(starts)):
        grams = pool[starts[n - 1] : starts[n]].reshape(-1, n)
        windows = _windows(length, n, skips) if low <= n <= high else np.zeros((0, n), "int64")
        if len(grams):
            counts.append(_counts(node, x, batch, windows, grams))
    count = node.emit(op.concat(counts, -1))
    if mode == "IDF":
        count = op.astype(op.greater(count, relax.const(0, "float32")), "float32")
    if mode != "TF":
        count = op.multiply(count, relax.const(weights[: len(indexes)], "float32"))
    # An output without an n-gram is zero.
    count = node.emit(op.nn.pad(node.emit(count), [0, 0] * len(batch) + [0, 1]))
    places = np.full(int(indexes.max()) + 1, len(indexes))
    places[indexes] = np.arange(len(indexes))
    return op.take(count, relax.const(places, "int64"), len(batch), mode="fast")


def _windows(length: int, n: int, skips: int) -> np.ndarray:
    """List the places of the tokens of all n-grams: [windows, n]."""
    found = [
        [start + i * step for i in range(n)]
        for step in range(1, skips + 2 if n > 1 else 2)
        for start in range(length - (n - 1) * step)
    ]
    return np.array(found, "int64").reshape(-1, n)


def _counts(node: Node, x: Any, batch: list[int], windows: np.ndarray, grams: np.ndarray) -> Any:
    """Count how many windows hold each n-gram: [.., grams] in float32."""
    if not len(windows):
        return relax.const(np.zeros([*batch, len(grams)], "float32"), "float32")
    equal = []
    for i in range(windows.shape[1]):
        tokens = op.take(x, relax.const(windows[:, i], "int64"), len(batch), mode="fast")
        tokens = node.emit(op.expand_dims(tokens, -1))
        equal.append(node.emit(op.equal(tokens, relax.const(grams[:, i], "int64"))))
    same = reduce(op.logical_and, equal)
    return node.emit(op.sum(op.astype(same, "float32"), [len(batch)]))
