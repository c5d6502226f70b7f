"""Softmax and the normalisations, each one Relax operator."""

from typing import Any

import numpy as np
from tvm import relax

from .operator import Operator

R, nn = relax.op, relax.op.nn


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x: Any, axis: int) -> Any:
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _normalized(x: Any, axes: tuple[int, ...], epsilon: float, rng: Any = None) -> Any:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    if rng is not None:  # two elements are 1 and -1 whatever they were, but for the mean's rounding
        mean = mean * (1 + rng.uniform(-1, 1, mean.shape) * 2.0**-24)
    return (x - mean) / np.sqrt(variance + epsilon)


def _layer_norm(
    x: Any, gamma: Any, beta: Any, axes: list[int], epsilon: float, rng: Any = None
) -> Any:
    return _normalized(x, tuple(axes), epsilon, rng) * gamma + beta


def _rms_norm(x: Any, gamma: Any, axes: list[int], epsilon: float) -> Any:
    square = np.square(x).mean(tuple(axes), keepdims=True)
    return x / np.sqrt(square + epsilon) * gamma


def _per_channel(array: Any, like: Any) -> Any:
    return array.reshape([1, -1] + [1] * (like.ndim - 2))


def _group_norm(x: Any, gamma: Any, beta: Any, groups: int, epsilon: float, rng: Any = None) -> Any:
    grouped = x.reshape(x.shape[0], groups, -1)
    normal = _normalized(grouped, (2,), epsilon, rng).reshape(x.shape)
    return normal * _per_channel(gamma, x) + _per_channel(beta, x)


def _instance_norm(x: Any, gamma: Any, beta: Any, epsilon: float, rng: Any = None) -> Any:
    normal = _normalized(x, tuple(range(2, x.ndim)), epsilon, rng)
    return normal * _per_channel(gamma, x) + _per_channel(beta, x)


def _batch_norm(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    scale = gamma / np.sqrt(variance + epsilon)
    return (x - _per_channel(mean, x)) * _per_channel(scale, x) + _per_channel(beta, x)


def _cross_entropy(predictions: Any, labels: Any) -> Any:
    rows = predictions.shape[0] if predictions.ndim == 2 else 1
    return -(predictions * labels).sum() / rows


OPERATORS = [
    Operator("nn.softmax", lambda x, axis: nn.softmax(x, axis), softmax, noise=8),
    # The sum of exponentials may be 1 and a little, whose logarithm is that little: Blanchard,
    # Higham and Higham, "Accurately computing the log-sum-exp and softmax functions", 2021.
    Operator(
        "nn.log_softmax",
        lambda x, axis: nn.log_softmax(x, axis),
        log_softmax,
        noise=8,
        absolute=1,
    ),
    Operator(
        "nn.layer_norm",
        lambda x, gamma, beta, axes, epsilon: nn.layer_norm(x, gamma, beta, axes, epsilon),
        _layer_norm,
        noise=16,
        perturbed=lambda rng, *arrays, **attrs: _layer_norm(*arrays, **attrs, rng=rng),
    ),
    Operator(
        "nn.rms_norm",
        lambda x, gamma, axes, epsilon: nn.rms_norm(x, gamma, axes, epsilon),
        _rms_norm,
        noise=16,
    ),
    Operator(
        "nn.group_norm",
        lambda x, gamma, beta, groups, epsilon: nn.group_norm(
            x, gamma, beta, groups, 1, list(range(2, x.ty.ndim)), epsilon
        ),
        _group_norm,
        noise=16,
        perturbed=lambda rng, *arrays, **attrs: _group_norm(*arrays, **attrs, rng=rng),
    ),
    Operator(
        "nn.instance_norm",
        lambda x, gamma, beta, epsilon: nn.instance_norm(
            x, gamma, beta, 1, list(range(2, x.ty.ndim)), epsilon
        ),
        _instance_norm,
        noise=16,
        perturbed=lambda rng, *arrays, **attrs: _instance_norm(*arrays, **attrs, rng=rng),
    ),
    Operator(
        "nn.batch_norm",
        lambda x, gamma, beta, mean, variance, epsilon: relax.TupleGetItem(
            relax.BlockBuilder.current().emit(
                nn.batch_norm(x, gamma, beta, mean, variance, 1, epsilon, training=False)
            ),
            0,
        ),
        _batch_norm,
        noise=8,
    ),
    Operator(
        "nn.cross_entropy_with_logits", nn.cross_entropy_with_logits, _cross_entropy, noise=16
    ),
]
