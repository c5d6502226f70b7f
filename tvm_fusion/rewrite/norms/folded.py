"""Matrices with the scale of a norm in front of them multiplied in; numpy alone."""

from __future__ import annotations

import numpy as np


def fold(scale: np.ndarray, weight: np.ndarray, is_centred: bool) -> np.ndarray:
    """Multiply a norm's scale into a matrix, and take the mean of columns off.

    Parameters
    ----------
    scale : numpy.ndarray
        ``[K]``.
    weight : numpy.ndarray
        ``[K, N]``, of a half type.
    is_centred : bool
        Whether columns shall add up to zero, but for roundings: a row's mean then cancels before
        sums in float32 round it.

    Returns
    -------
    numpy.ndarray
        ``[K, N]``, of the type of ``weight``.
    """
    exact = scale.astype("float32")[:, None] * weight.astype("float32")
    if is_centred:
        exact -= exact.mean(axis=0, dtype="float64").astype("float32")
    return exact.astype(weight.dtype)
