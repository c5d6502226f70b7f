"""Convert linear models of ai.onnx.ml: products with coefficients that are attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

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

op = relax.op


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
