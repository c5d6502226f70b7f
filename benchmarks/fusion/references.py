"""Softmax and layer norm over the last axis in numpy, by definition."""

import numpy as np

EPSILON = 1e-5


def softmax(x: np.ndarray) -> np.ndarray:
    """Divide exponentials by their sum."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Centre, divide by the deviation, scale and shift."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * gamma + beta
