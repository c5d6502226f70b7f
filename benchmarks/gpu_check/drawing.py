"""Arguments drawn from recipes, the same on the machine that builds and on the one that runs."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Recipe = Mapping[str, Any]

#: Recipes of floating-point tensors, tried in turn until the expected results are finite.
NORMAL: Recipe = {"kind": "normal", "mean": 0.0, "deviation": 1.0}
POSITIVE: Recipe = {"kind": "uniform", "low": 0.25, "high": 1.75}


def tensor(shape: Sequence[int], dtype: str, recipe: Recipe) -> dict[str, Any]:
    """Describe a tensor argument.

    Parameters
    ----------
    shape
    dtype
        Any that numpy has.
    recipe
        ``kind`` and its numbers: ``normal`` (``mean``, ``deviation``), ``uniform`` (``low``,
        ``high``), ``integers`` (from ``low`` to below ``high``), ``choice`` (of ``values``) or
        ``bool``.

    Returns
    -------
    dict
        Plain data.
    """
    return {"shape": [int(extent) for extent in shape], "dtype": dtype, "recipe": dict(recipe)}


def given(array: np.ndarray) -> dict[str, Any]:
    """Describe a tensor argument whose numbers are stored: ``array`` of the description."""
    return {**tensor(array.shape, str(array.dtype), {"kind": "stored"}), "array": array}


def draw(arguments: Sequence[dict[str, Any] | int], seed: int) -> list[np.ndarray | int]:
    """Draw a function's arguments.

    Parameters
    ----------
    arguments
        Of :func:`tensor`; integers stand for themselves.
    seed
        Each tensor has a stream of its own, by its position.

    Returns
    -------
    list of numpy.ndarray or int
    """
    return [
        spec if isinstance(spec, int) else _draw(spec, np.random.default_rng([seed, position]))
        for position, spec in enumerate(arguments)
    ]


def checksum(values: Sequence[np.ndarray | int]) -> int:
    """Return a CRC-32 of arguments, which tells whether another numpy draws other numbers."""
    total = 0
    for value in values:
        total = zlib.crc32(np.ascontiguousarray(value).tobytes(), total)
    return total


def _draw(spec: Mapping[str, Any], stream: np.random.Generator) -> np.ndarray:
    shape, recipe = tuple(spec["shape"]), spec["recipe"]
    values: Any
    if recipe["kind"] == "stored":
        values = spec["array"]
    elif recipe["kind"] == "normal":
        values = recipe["mean"] + recipe["deviation"] * stream.standard_normal(shape, np.float32)
    elif recipe["kind"] == "uniform":
        values = stream.uniform(recipe["low"], recipe["high"], shape)
    elif recipe["kind"] == "integers":
        values = stream.integers(recipe["low"], recipe["high"], shape)
    elif recipe["kind"] == "choice":
        values = np.asarray(recipe["values"])[stream.integers(0, len(recipe["values"]), shape)]
    elif recipe["kind"] == "bool":
        values = stream.random(shape) < 0.5
    else:
        raise ValueError(f"unknown recipe {recipe['kind']!r}")
    return np.asarray(values).astype(spec["dtype"])
