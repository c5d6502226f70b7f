"""Convert linear models and support vector machines of ai.onnx.ml."""

from itertools import combinations
from typing import Any

import numpy as np
from tvm import relax, tirx

from ....core.tir.task_kernel import Local, loop, repeat_while, store, when
from ...operators.task_kernels import emit_kernel
from ...registry import Unsupported
from ..node import Node
from ..registry import register
from .forest import numbers
from .scores import (
    chosen,
    is_above,
    labels,
    of_strings,
    rows,
    transform_of,
    transformed,
    with_second_class,
)

# Convert support vector machines: kernels of rows and support vectors, then one product.
#
# The sums of one class against another are columns of one matrix:
# ``scores = kernel(x, v) @ W + rho``.


op = relax.op
F32 = "float32"


@register("ai.onnx.ml::SVMRegressor")
def svm_regressor(node: Node) -> Any:
    """Convert the weighted sum of kernels; with ``one_class`` its sign."""
    count, coefficients = node.attribute("n_supports", 0), numbers(node, "coefficients")
    if transform_of(node) != "NONE":
        raise Unsupported("with post_transform, which ONNX Runtime ignores", "use NONE")
    x = rows(node, F32)
    if count:
        x = _kernels(node, x, _matrix(node, "support_vectors", count))
    else:
        node.attribute("kernel_type"), node.attribute("kernel_params")
    total = _product(node, x, coefficients.reshape(-1, 1), numbers(node, "rho")[:1])
    if not node.attribute("one_class", 0):
        return total
    one = relax.const(1.0, F32)
    return op.where(node.emit(is_above(total, 0.0)), one, relax.const(-1.0, F32))


@register("ai.onnx.ml::SVMClassifier", refuses=of_strings)
def svm_classifier(node: Node) -> Any:
    """Convert one score for each pair of classes, or for each class where there are no vectors."""
    classes = numbers(node, "classlabels_ints", "int64")
    node.attribute("classlabels_strings")
    counts = numbers(node, "vectors_per_class", "int64")
    if counts.sum():
        return _by_pairs(node, classes, counts)
    return _by_classes(node, classes)


def _by_classes(node: Node, classes: np.ndarray) -> list[Any]:
    """Convert a linear machine, which has coefficients of each class."""
    for name in ("kernel_type", "kernel_params", "support_vectors"):
        node.attribute(name)
    weights = _matrix(node, "coefficients", len(classes))
    has_probability = bool(len(numbers(node, "prob_a"))) and bool(len(numbers(node, "prob_b")))
    scores = _product(node, rows(node, F32), weights.T, numbers(node, "rho")[:1])
    label = labels(node, node.emit(op.argmax(scores, -1)), classes)
    if len(classes) == 2 and not has_probability:
        top = node.emit(op.max(scores, [-1], keepdims=True))
        if (weights >= 0).all():
            is_second = op.greater_equal(top, relax.const(0.5, F32))
        else:
            is_second = is_above(top, 0.0)
        is_second = node.emit(op.squeeze(node.emit(is_second), [-1]))
        label = node.emit(op.where(is_second, relax.const(int(classes[1]), "int64"), label))
    return [label, transformed(node, scores, transform_of(node))]


def _by_pairs(node: Node, classes: np.ndarray, counts: np.ndarray) -> list[Any]:
    """Convert votes of all pairs of classes, and their probabilities where they are asked for."""
    if len(counts) != len(classes) or len(classes) < 2:
        raise Unsupported(
            f"with {len(counts)} counts of vectors for {len(classes)} classes", "give each its own"
        )
    transform = transform_of(node)
    pairs = list(combinations(range(len(classes)), 2))
    vectors = int(counts.sum())
    coefficients = _matrix(node, "coefficients", len(classes) - 1)
    owner = np.repeat(np.arange(len(classes)), counts)
    weights = np.zeros((vectors, len(pairs)), F32)
    for column, (i, j) in enumerate(pairs):
        weights[owner == i, column] = coefficients[j - 1, owner == i]
        weights[owner == j, column] = coefficients[i, owner == j]
    kernels = _kernels(node, rows(node, F32), _matrix(node, "support_vectors", vectors))
    scores = _product(node, kernels, weights, numbers(node, "rho")[: len(pairs)])
    first = node.emit(node.cast(node.emit(is_above(scores, 0.0)), F32))
    votes_for = np.zeros((len(pairs), len(classes)), F32)
    against = np.zeros(len(classes), F32)
    for column, (i, j) in enumerate(pairs):
        votes_for[column, i], votes_for[column, j] = 1, -1
        against[j] += 1
    slope, offset = numbers(node, "prob_a"), numbers(node, "prob_b")
    if len(pairs) == 1:
        label = chosen(node, node.emit(is_above(scores, 0.0)), int(classes[0]), int(classes[1]))
    else:
        votes = _product(node, first, votes_for, against)
        label = labels(node, node.emit(op.argmax(votes, -1)), classes)
    if len(slope):
        result = class_probabilities(node, scores, slope, offset, len(classes))
        return [label, transformed(node, result, transform)]
    if len(pairs) > 1:
        return [label, transformed(node, scores, transform)]
    if transform == "PROBIT":
        raise Unsupported("with PROBIT of one column for two classes", "use NONE")
    return [label, with_second_class(node, scores, transform, transform != "NONE")]


def _kernels(node: Node, x: Any, vectors: np.ndarray) -> Any:
    """Compute the kernel of each row and each support vector."""
    kind = node.attribute("kernel_type", "LINEAR")
    gamma, start, degree = [*(node.attribute("kernel_params") or ()), 0.0, 0.0, 0.0][:3]
    columns = list(x.ty.shape)[1]
    if columns != vectors.shape[1]:
        raise Unsupported(
            f"of {columns} features with support vectors of {vectors.shape[1]}",
            f"give it {vectors.shape[1]} features",
        )
    if kind == "RBF":
        rows_of_one = node.emit(op.expand_dims(x, 1))
        apart = node.emit(op.subtract(rows_of_one, relax.const(vectors, F32)))
        distance = node.emit(op.sum(op.multiply(apart, apart), [-1]))
        return node.emit(op.exp(op.multiply(distance, relax.const(-gamma, F32))))
    product = node.emit(op.matmul(x, relax.const(np.ascontiguousarray(vectors.T), F32)))
    if kind == "LINEAR":
        return product
    if kind not in ("POLY", "SIGMOID"):
        raise Unsupported(f"with kernel_type {kind}", "use LINEAR, POLY, RBF or SIGMOID")
    scaled = op.multiply(product, relax.const(gamma, F32))
    shifted = node.emit(op.add(scaled, relax.const(start, F32)))
    if kind == "SIGMOID":
        return node.emit(op.tanh(shifted))
    return node.emit(op.power(shifted, relax.const(degree, F32)))


def _matrix(node: Node, name: str, count: int) -> np.ndarray:
    values = numbers(node, name)
    if not count or len(values) % count:
        raise Unsupported(f"with {len(values)} {name} in {count} rows", "give all rows one length")
    return values.reshape(count, -1)


def _product(node: Node, x: Any, weights: np.ndarray, start: np.ndarray) -> Any:
    columns = list(x.ty.shape)[1]
    if columns != len(weights):
        raise Unsupported(
            f"with coefficients for {len(weights)} of {columns} features", "give one for each"
        )
    product = node.emit(op.matmul(x, relax.const(np.ascontiguousarray(weights), F32)))
    return node.emit(op.add(product, relax.const(start, F32)))


# Probabilities of classes from probabilities of pairs: Wu, Lin and Weng, JMLR 5, 2004.
#
# The second of their methods, iterated as libsvm and ONNX Runtime do, which stop early: results are
# theirs and not the limit.
_ROUNDS = 100
_SMALLEST = 1e-7


def class_probabilities(
    node: Node, scores: Any, slope: np.ndarray, offset: np.ndarray, classes: int
) -> Any:
    """Couple the probabilities of pairs of classes.

    Parameters
    ----------
    scores : Expr
        [rows, pairs], pairs in the order (0, 1), (0, 2), ...
    slope, offset
        Platt's constants of each pair.
    """
    pairs = list(combinations(range(classes), 2))
    places = np.zeros((classes, classes), "int64")
    is_first = np.zeros((classes, classes), bool)
    for column, (i, j) in enumerate(pairs):
        places[i, j] = places[j, i] = column
        is_first[i, j] = True
    value = op.add(op.multiply(scores, _const(slope[: len(pairs)])), _const(offset[: len(pairs)]))
    share = node.emit(op.sigmoid(node.emit(op.negative(node.emit(value)))))
    share = node.emit(op.minimum(op.maximum(share, _const(_SMALLEST)), _const(1 - _SMALLEST)))
    spread = node.emit(op.take(share, relax.const(places.reshape(-1), "int64"), 1, mode="fast"))
    other = op.subtract(_const(1.0), spread)
    mask = relax.const(is_first.reshape(-1), "bool")
    share = node.emit(op.where(mask, spread, node.emit(other)))  # [rows, classes * classes]

    def body(n: Any, share: Any, p: Any, q: Any, qp: Any) -> None:
        def pair(i: Any, j: Any) -> Any:
            return share[n, i * classes + j]

        def total(i: Any) -> None:
            """Write row i of Q p."""
            summed.set(0.0)
            with loop(0, classes) as j:
                summed.set(summed.value + q[n, i, j] * p[n, j])
            store(qp, [n, i], summed.value)

        summed, energy, worst = Local(F32, 0.0), Local(F32, 0.0), Local(F32, 0.0)
        change, rounds, is_done = Local(F32, 0.0), Local("int32", 0), Local("int32", 0)
        with loop(0, classes) as i:
            store(p, [n, i], 1.0 / classes)
            summed.set(0.0)
            with loop(0, classes) as j, when(tirx.NE(i, j)):
                summed.set(summed.value + pair(j, i) * pair(j, i))
                store(q, [n, i, j], -pair(j, i) * pair(i, j))
            store(q, [n, i, i], summed.value)
        with repeat_while(tirx.And(rounds.value < _ROUNDS, tirx.EQ(is_done.value, 0))):
            energy.set(0.0)
            worst.set(0.0)
            with loop(0, classes) as i:
                total(i)
                energy.set(energy.value + p[n, i] * qp[n, i])
            with loop(0, classes) as i:
                worst.set(tirx.max(worst.value, tirx.abs(qp[n, i] - energy.value)))
            with when(worst.value < tirx.const(0.005 / classes, F32)):
                is_done.set(1)
            with when(tirx.EQ(is_done.value, 0)), loop(0, classes) as i:
                one = tirx.const(1.0, F32)
                change.set((energy.value - qp[n, i]) / q[n, i, i])
                store(p, [n, i], p[n, i] + change.value)
                step = change.value * q[n, i, i] + tirx.const(2.0, F32) * qp[n, i]
                moved = energy.value + change.value * step
                energy.set(moved / (one + change.value) / (one + change.value))
                with loop(0, classes) as j:
                    moved = qp[n, j] + change.value * q[n, i, j]
                    store(qp, [n, j], moved / (one + change.value))
                    store(p, [n, j], p[n, j] / (one + change.value))
            rounds.set(rounds.value + 1)

    batch = next(iter(share.ty.shape))
    outputs = [
        ([batch, classes], F32),
        ([batch, classes, classes], F32),
        ([batch, classes], F32),
    ]
    return emit_kernel(node.builder, "pairwise_coupling", [batch], [share], outputs, body)[0]


def _const(value: Any) -> Any:
    return relax.const(value, F32)


@register("ai.onnx.ml::LinearRegressor")
def regressor(node: Node) -> Any:
    """Convert the product with coefficients, plus intercepts, transformed."""
    targets = node.attribute("targets", 1)
    intercepts = numbers(node, "intercepts")
    scores = _scores(node, targets, intercepts if len(intercepts) == targets else None)
    return transformed(node, scores, transform_of(node))


@register("ai.onnx.ml::LinearClassifier", refuses=of_strings)
def classifier(node: Node) -> Any:
    """Convert scores of classes and the label of the best; one score is that of the second of two.

    How one column becomes two, and which label zero gets, is ONNX Runtime's.
    """
    classes = numbers(node, "classlabels_ints", "int64")
    node.attribute("classlabels_strings"), node.attribute("multi_class")
    intercepts, transform = numbers(node, "intercepts"), transform_of(node)
    count = len(intercepts)
    scores = _scores(node, count, intercepts)
    if count > 1:
        if len(classes) < count:
            raise Unsupported(f"with {len(classes)} classes for {count} scores", "name all classes")
        place = node.emit(op.argmax(scores, -1))
        return [labels(node, place, classes), transformed(node, scores, transform)]
    first, second = (int(c) for c in classes) if len(classes) == 2 else (0, 1)
    label = chosen(node, node.emit(is_above(scores, 0.0)), second, first)
    if len(classes) != 2:
        return [label, transformed(node, scores, transform)]
    if transform == "PROBIT":
        raise Unsupported("with PROBIT of one column for two classes", "use NONE")
    return [label, with_second_class(node, scores, transform, True)]


def _scores(node: Node, targets: int, intercepts: np.ndarray | None) -> Any:
    x = rows(node, "float32")
    columns = list(x.ty.shape)[1]
    coefficients = numbers(node, "coefficients")
    if targets < 1 or len(coefficients) % targets or len(coefficients) // targets != columns:
        raise Unsupported(
            f"with {len(coefficients)} coefficients for {targets} targets of {columns} features",
            "give it one for each feature of each target",
        )
    weights = np.ascontiguousarray(coefficients.reshape(targets, -1).T)
    scores = node.emit(op.matmul(x, relax.const(weights, "float32")))
    if intercepts is None or not len(intercepts):
        return scores
    return node.emit(op.add(scores, relax.const(intercepts, "float32")))
