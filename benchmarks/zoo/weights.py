"""Seeded weights: distributions, and how a tensor is drawn from one; rotary tables."""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["weight", "scale", "bias", "mean", "variance", "table"]


@dataclass(frozen=True)
class Recipe:
    """How a tensor is drawn: normal, or uniform for variances.

    Attributes
    ----------
    kind : {"weight", "scale", "bias", "mean", "variance", "table"}
        The tensor's role.
    center, spread
        Mean and standard deviation; for a variance, the middle and half the width of the interval.
    """

    kind: Kind
    center: float
    spread: float


SCALE = Recipe("scale", 1.0, 0.1)
BIAS = Recipe("bias", 0.0, 0.1)
MEAN = Recipe("mean", 0.0, 0.1)
VARIANCE = Recipe("variance", 1.0, 0.5)
# Small enough that a table tied to the output layer gives sensible logits (std 2.8 at width 768).
TABLE = Recipe("table", 0.0, 0.1)


def draw(name: str, shape: tuple[int, ...], recipe: Recipe, seed: int) -> np.ndarray:
    """Draw one tensor from its own stream, which depends on ``seed`` and ``name`` alone.

    Parameters
    ----------
    shape
        Its shape.

    Returns
    -------
    numpy.ndarray
        float32 values.
    """
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    stream = np.random.Generator(np.random.PCG64([seed, key]))
    if recipe.kind == "variance":
        values = 2 * stream.random(shape, np.float32) - 1
    else:
        values = stream.standard_normal(shape, np.float32)
    values *= np.float32(recipe.spread)
    values += np.float32(recipe.center)
    return values


def rotary(function: str, shape: tuple[int, ...]) -> np.ndarray:
    """Compute the ``cos`` or ``sin`` of rotary embedding, by position and half of a head twice."""
    *_, rows, width = shape
    frequencies = np.float32(1e4) ** (-np.arange(0, width, 2, dtype=np.float32) / width)
    angles = np.outer(np.arange(rows, dtype=np.float32), frequencies)
    return np.asarray(getattr(np, function)(np.hstack([angles, angles])).reshape(shape), "<f4")
