"""What ai.onnx.ml's models do with scores: transforms, a second class, labels.

Semantics: ``ml_common.h`` of ONNX Runtime, whose files are what users have; where ONNX leaves it
open (one column for two classes), what it does is taken.
"""

from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ...registry import Unsupported
from ...tensor_types import dtype_of
from ..node import Node

op = relax.op
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_ON_HOST = "map strings to integers before the model, on the host"
_SMALLEST = 1e-7  # what SOFTMAX_ZERO takes for zero


def of_strings(node: onnx.NodeProto) -> Unsupported | None:
    """Refuse operators whose attributes are strings: keys, categories, names of classes."""
    for attribute in node.attribute:
        if attribute.strings and attribute.name.startswith(("classlabels", "classes")):
            return Unsupported(
                "with classes that are strings",
                "train on integer classes and name them after the model, on the host",
            )
        if attribute.strings and attribute.name != "nodes_modes":
            return Unsupported(f"with strings ({attribute.name})", _ON_HOST)
        value = helper.get_attribute_value(attribute)
        if getattr(value, "data_type", None) == onnx.TensorProto.STRING:
            return Unsupported(f"with strings ({attribute.name})", _ON_HOST)
    return None


def rows(node: Node, dtype: str | None = None) -> Any:
    """Return the features as rows of a matrix; one axis is one row."""
    x, rank = node.inputs[0], len(node.shape())
    if rank not in (1, 2):
        raise Unsupported(f"of rank {rank}", "give it one or two axes")
    if rank == 1:
        x = node.emit(op.expand_dims(x, 0))
    return x if dtype is None else node.emit(node.cast(x, dtype))


def transform_of(node: Node) -> str:
    """Read how scores become results."""
    name = node.attribute("post_transform", "NONE")
    name = TRANSFORMS[name] if isinstance(name, int) and 0 <= name < len(TRANSFORMS) else name
    if name not in TRANSFORMS:
        raise Unsupported(f"with post_transform {name}", f"use {', '.join(TRANSFORMS)}")
    return str(name)


def transformed(node: Node, scores: Any, transform: str) -> Any:
    """Apply a transform to rows of scores.

    One column alone is only changed by PROBIT: that is what ONNX Runtime does.
    """
    scores = node.emit(scores)
    if transform == "PROBIT":
        return node.emit(_probit(node, scores))
    if transform == "NONE" or int(list(scores.ty.shape)[-1]) == 1:
        return scores
    if transform == "LOGISTIC":
        return node.emit(op.sigmoid(scores))
    if transform == "SOFTMAX":
        return node.emit(op.nn.softmax(scores, -1))
    top = node.emit(op.max(scores, [-1], keepdims=True))
    is_zero = op.less_equal(op.abs(scores), _number(scores, _SMALLEST))
    is_zero = node.emit(is_zero)
    powers = node.emit(op.exp(op.subtract(scores, top)))
    nothing = op.multiply(scores, op.exp(op.negative(top)))
    total = op.sum(node.emit(op.where(is_zero, op.zeros_like(scores), powers)), [-1], keepdims=True)
    return node.emit(op.divide(node.emit(op.where(is_zero, nothing, powers)), node.emit(total)))


def with_second_class(node: Node, score: Any, transform: str, is_probability: bool) -> Any:
    """Make the columns of two classes of one score.

    Parameters
    ----------
    score : Expr
        One column, of the second class.
    is_probability
        Whether the first class has what is left of one, rather than the negative.
    """
    if transform == "LOGISTIC":
        second, first = op.sigmoid(score), op.sigmoid(node.emit(op.negative(score)))
    elif is_probability:
        second, first = score, op.subtract(_number(score, 1.0), score)
    else:
        second, first = score, op.negative(score)
    return node.emit(op.concat([node.emit(first), node.emit(second)], -1))


def labels(node: Node, place: Any, classes: np.ndarray) -> Any:
    """Name classes by their places."""
    names = relax.const(np.array(classes, "int64"), "int64")
    return node.emit(op.take(names, node.emit(node.cast(place, "int64")), 0, mode="fast"))


def column(node: Node, scores: Any, place: int) -> Any:
    """Return one column of scores."""
    return node.emit(op.strided_slice(scores, [1], [place], [place + 1]))


def chosen(node: Node, condition: Any, second: int, first: int) -> Any:
    """Choose one of two labels for each row by a column of conditions."""
    both = op.where(condition, relax.const(second, "int64"), relax.const(first, "int64"))
    return node.emit(op.squeeze(node.emit(both), [-1]))


def is_above(scores: Any, threshold: float) -> Any:
    """Compare scores with a number."""
    return op.greater(scores, _number(scores, threshold))


def _number(like: Any, value: float) -> Any:
    return relax.const(value, dtype_of(like))


def _probit(node: Node, scores: Any) -> Any:
    """Approximate the quantiles of the normal distribution as ONNX Runtime does.

    Winitzki's inverse of erf, a = 0.147, which is right to two or three digits.
    """
    x = node.emit(op.subtract(op.multiply(scores, _number(scores, 2.0)), _number(scores, 1.0)))
    one = _number(scores, 1.0)
    log = node.emit(op.log(op.multiply(op.subtract(one, x), op.add(one, x))))
    half = op.multiply(log, _number(scores, 0.5))
    v = node.emit(op.add(_number(scores, 2 / (3.14159 * 0.147)), half))
    inner = op.subtract(op.multiply(v, v), op.multiply(log, _number(scores, 1 / 0.147)))
    root = op.sqrt(op.subtract(op.sqrt(node.emit(inner)), v))
    sign = op.where(op.less(x, _number(scores, 0.0)), _number(scores, -1.0), one)
    return op.multiply(op.multiply(sign, node.emit(root)), _number(scores, 1.41421356))
