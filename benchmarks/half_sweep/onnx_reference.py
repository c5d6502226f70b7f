"""Operators that onnx's reference computes by logarithms of what underflows."""

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    centred = x - x.max(axis=axis, keepdims=True)
    return np.asarray(centred - np.log(np.exp(centred).sum(axis=axis, keepdims=True)))


class LogSoftmax(OpRun):
    """The logarithm of softmax."""

    def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        return (_log_softmax(x, -1 if axis is None else axis),)


class ReduceLogSumExp(OpRun):
    """The logarithm of the sum of exponentials."""

    def _run(
        self,
        x: np.ndarray,
        axes: Any = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> tuple[np.ndarray]:
        over = None if axes is None or not len(axes) else tuple(int(a) for a in axes)
        if over is None and noop_with_empty_axes:
            return (x,)
        largest = np.max(x, axis=over, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(largest), largest, 0)
        total = np.log(np.exp(x - shift).sum(axis=over, keepdims=True)) + shift
        return (total if keepdims else np.squeeze(total, over),)


class Softplus(OpRun):
    """``log(1 + exp(x))``."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),)


class SoftmaxCrossEntropyLoss(OpRun):
    """The negative logarithm of softmax at the labels, weighted and reduced."""

    def _run(
        self,
        x: np.ndarray,
        labels: np.ndarray,
        weight: np.ndarray | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> tuple[np.ndarray, ...]:
        found = _log_softmax(x, 1)
        is_ignored = labels == ignore_index if ignore_index is not None else labels != labels
        index = np.where(is_ignored, 0, labels)
        loss = -np.take_along_axis(found, np.expand_dims(index, 1), 1).squeeze(1)
        each = np.ones_like(loss) if weight is None else weight[index].astype(loss.dtype)
        each = np.where(is_ignored, 0, each)
        loss = np.where(is_ignored, 0, loss * each)
        if reduction == "mean":
            loss = loss.sum() / each.sum()
        elif reduction == "sum":
            loss = loss.sum()
        return (np.asarray(loss, x.dtype), found)[: len(self.onnx_node.output)]


#: In place of the reference's own.
STABLE = [LogSoftmax, ReduceLogSumExp, Softplus, SoftmaxCrossEntropyLoss]
