"""Weights next to the library: written once, mapped into memory, replaceable. Imports no TVM."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

from ....errors import UserError
from ..tensors import ALIGNMENT, as_array, to_numpy
from . import manifest

if TYPE_CHECKING:
    from ....core.constants.weight_names import Packing


LEAST_PART = 1 << 12  # bytes of a weight that may lie in another


@dataclass(frozen=True)
class StoredWeight:
    """Where a weight of an architecture is."""

    label: str  # of what is stored; another architecture's weight may be the same
    packing: Packing | None = None  # of a packed one: the library's function and the shape before


def write(path: Path, weights: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Write weights one after the other, each aligned.

    Those that follow each other in a larger one, as matrices do that one function of a model joins
    and another does not, are written there alone.

    Parameters
    ----------
    weights
        By label, written in this order.

    Returns
    -------
    dict
        By label: ``shape``, ``dtype``, ``offset``, ``bytes``.
    """
    offsets: dict[str, int] = {}
    inside = _inside(weights)
    with path.open("wb") as file:
        for label, array in weights.items():
            if label not in inside:
                file.write(bytes(-file.tell() % ALIGNMENT))
                offsets[label] = file.tell()
                file.write(_bytes(array).data)
        file.flush()
        os.fsync(file.fileno())
    offsets |= {label: offsets[whole] + start for label, (whole, start) in inside.items()}
    return {
        label: {
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "offset": offsets[label],
            "bytes": array.nbytes,
        }
        for label, array in weights.items()
    }


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _inside(weights: Mapping[str, np.ndarray]) -> dict[str, tuple[str, int]]:
    """Find weights that one behind the other are another one: in which they lie, and where."""
    large = {label: _bytes(w) for label, w in weights.items() if w.nbytes >= LEAST_PART}
    by_start: dict[bytes, list[str]] = {}
    for label, data in large.items():
        by_start.setdefault(data[:LEAST_PART].tobytes(), []).append(label)
    found: dict[str, tuple[str, int]] = {}
    for whole, data in sorted(large.items(), key=lambda item: -item[1].size):
        parts: dict[str, tuple[str, int]] = {}
        place = 0
        while whole not in found and place < data.size and place % ALIGNMENT == 0:
            for label in by_start.get(data[place : place + LEAST_PART].tobytes(), ()):
                other = large[label]
                if label not in parts.keys() | found.keys() | {whole} and np.array_equal(
                    data[place : place + other.size], other
                ):
                    parts[label] = whole, place
                    place += other.size
                    break
            else:
                break
        if place == data.size:
            found |= parts
    return found


def entries(
    places: Mapping[str, Mapping[str, Any]], used: Mapping[str, StoredWeight]
) -> dict[str, dict[str, Any]]:
    """Write the manifest's entry ``weights`` of an architecture."""
    found = {}
    for name, weight in used.items():
        found[name] = dict(places[weight.label])
        if weight.packing is not None:
            stored = {"function": weight.packing.function, "shape": found[name]["shape"]}
            found[name].update(shape=list(weight.packing.shape), packed=stored)
    return found


def read(folder: Path, found: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Map an artifact's weights into memory; pages are read when they are first used.

    Returns
    -------
    dict of str to numpy.ndarray
        Private views, packed ones as they are stored: writing to one changes neither the file nor
        what others see.
    """
    path = folder / manifest.WEIGHTS
    data = mapped(path)
    return {
        name: data[e["offset"] : e["offset"] + e["bytes"]].view(e["dtype"]).reshape(_stored(e))
        for name, e in found["weights"].items()
    }


def _stored(entry: Mapping[str, Any]) -> list[int]:
    return entry.get("packed", entry)["shape"]


def replacements(found: Mapping[str, Any], weights: Any, arch: str) -> dict[str, np.ndarray]:
    """Check weights that are to replace an artifact's own; arrays are not packed yet.

    Parameters
    ----------
    found
        The artifact's manifest, of one architecture.
    weights : str, os.PathLike, mapping of str to array, or None
        Another artifact's folder, or arrays by name.
    arch
        Which architecture's weights to take where another artifact has several.

    Raises
    ------
    UserError
        For an unknown name, or another shape or dtype.
    """
    if weights is None:
        return {}
    if isinstance(weights, (str, os.PathLike)):
        return _of_folder(found, Path(weights), arch)
    if not isinstance(weights, Mapping):
        raise UserError(
            f"the weights are a {type(weights).__name__}", "an artifact's folder or arrays by name"
        )
    return {name: _checked(found, name, value) for name, value in weights.items()}


def _of_folder(found: Mapping[str, Any], folder: Path, arch: str) -> dict[str, np.ndarray]:
    """Take another artifact's weights, packed ones as they are."""
    other = manifest.read(folder)
    if arch in other["target"]["archs"]:
        other = manifest.of_architecture(other, arch)
    arrays = read(folder, other)
    for name, array in arrays.items():
        here, there = found["weights"].get(name, {}), other["weights"][name]
        if "packed" not in here and "packed" not in there:
            _checked(found, name, array)
        elif _form(here) != _form(there):
            raise UserError(
                f"weight {name!r} of {str(folder)!r} is stored in another form",
                "an artifact of the same graph and target",
                "give the weights as arrays by name",
            )
    return arrays


def _form(entry: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the shape of a packed weight and its type, which kernels do not check."""
    return entry.get("packed", {}).get("shape"), entry.get("dtype")


def _checked(found: Mapping[str, Any], name: str, value: Any) -> np.ndarray:
    entry = found["weights"].get(name)
    if entry is None:
        raise UserError(f"unknown weight {name!r}", "a name that `tvm-fusion inspect --json` lists")
    given = as_array(value, entry["dtype"], f"weight {name!r}")
    array = given if isinstance(given, np.ndarray) else to_numpy(given)
    if list(array.shape) != entry["shape"] or str(array.dtype) != entry["dtype"]:
        raise UserError(
            f"weight {name!r} has shape {array.shape} and dtype {array.dtype}",
            f"shape {tuple(entry['shape'])} and dtype {entry['dtype']}",
        )
    return array


# A file as an array in memory that is read when it is touched, without an open descriptor.
#
# Python's ``mmap``, and numpy's over it, keep a copy of the descriptor for as long as the mapping
# is there: a process that serves a thousand models would run out of them.
_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_C.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def mapped(path: Path) -> np.ndarray:
    """Map a file copy on write: what is written to the array does not reach the file.

    Returns
    -------
    numpy.ndarray
        Of bytes. The mapping goes with the last array over it.

    Raises
    ------
    OSError
        If the file cannot be read or mapped.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:  # which cannot be mapped
            return np.empty(0, np.uint8)
        return np.asarray(_Mapping(file.fileno(), size))


class _Mapping:
    """Memory that numpy's arrays refer to as their base."""

    def __init__(self, descriptor: int, size: int) -> None:
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        self._address = _C.mmap(None, size, rights, mmap.MAP_PRIVATE, descriptor, 0)
        if self._address == _FAILED:
            self._address = None
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._size, self._unmap = size, _C.munmap
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._address, False),
        }

    def __del__(self) -> None:
        if self._address is not None:
            self._unmap(self._address, self._size)
