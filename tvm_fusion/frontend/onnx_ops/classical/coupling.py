"""Probabilities of classes from probabilities of pairs: Wu, Lin and Weng, JMLR 5, 2004.

The second of their methods, iterated as libsvm and ONNX Runtime do, which stop early: results are
theirs and not the limit.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from tvm import relax, tirx

from ....core.task_kernel import Local, loop, repeat_while, store, when
from ...task_kernels import emit_kernel
from ..node import Node

op = relax.op
F32 = "float32"
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
    slope, offset : numpy.ndarray
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
