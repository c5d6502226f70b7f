"""The weights beside the library: written once, mapped into memory, replaceable. Imports no TVM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

from ..errors import UserError
from . import manifest
from .tensors import ALIGNMENT, as_array, to_numpy


def write(path: Path, weights: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Write weights one after the other, each aligned.

    Parameters
    ----------
    path : Path
        The file.
    weights : mapping of str to numpy.ndarray
        Written in this order.

    Returns
    -------
    dict
        The manifest's entry ``weights``.
    """
    entries = {}
    with path.open("wb") as file:
        for name, array in weights.items():
            file.write(bytes(-file.tell() % ALIGNMENT))
            entries[name] = {
                "shape": list(array.shape),
                "dtype": str(array.dtype),
                "offset": file.tell(),
                "bytes": array.nbytes,
            }
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
    return entries


def read(folder: Path, found: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Map an artifact's weights into memory; pages are read when they are first used.

    Returns
    -------
    dict of str to numpy.ndarray
        Private views: writing to one changes neither the file nor what others see.
    """
    path = folder / manifest.WEIGHTS
    if path.stat().st_size == 0:  # which cannot be mapped
        data = np.empty(0, np.uint8)
    else:
        data = np.memmap(path, np.uint8, mode="c")
    return {
        name: data[e["offset"] : e["offset"] + e["bytes"]].view(e["dtype"]).reshape(e["shape"])
        for name, e in found["weights"].items()
    }


def replacements(found: Mapping[str, Any], weights: Any) -> dict[str, np.ndarray]:
    """Check weights that are to replace an artifact's own.

    Parameters
    ----------
    found : mapping
        The artifact's manifest.
    weights : str, os.PathLike, mapping of str to array, or None
        Another artifact's folder, or arrays by name.

    Raises
    ------
    UserError
        For an unknown name, or another shape or dtype.
    """
    if weights is None:
        return {}
    if isinstance(weights, (str, os.PathLike)):
        other = Path(weights)
        weights = read(other, manifest.read(other))
    if not isinstance(weights, Mapping):
        raise UserError(
            f"the weights are a {type(weights).__name__}", "an artifact's folder or arrays by name"
        )
    result = {}
    for name, value in weights.items():
        entry = found["weights"].get(name)
        if entry is None:
            raise UserError(
                f"unknown weight {name!r}", "a name that `tvm-fusion inspect --json` lists"
            )
        given = as_array(value, entry["dtype"], f"weight {name!r}")
        array = given if isinstance(given, np.ndarray) else to_numpy(given)
        if list(array.shape) != entry["shape"] or str(array.dtype) != entry["dtype"]:
            raise UserError(
                f"weight {name!r} has shape {array.shape} and dtype {array.dtype}",
                f"shape {tuple(entry['shape'])} and dtype {entry['dtype']}",
            )
        result[name] = array
    return result
