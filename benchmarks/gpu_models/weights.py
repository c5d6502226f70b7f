"""Seeded weights, drawn alike on any machine, and artifacts that travel without them.

An artifact's weights are parameters of the module, transposed or side by side, and small constants
that the compiler computed. The build writes down which and drops the file; where the artifact runs,
the parameters are drawn again.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_fusion.deploy.runtime.artifact import manifest, weights_file
from tvm_fusion.rewrite.norms.statistics import fold

LEAST = 1 << 14  # bytes of a weight that is looked for among the parameters
LARGEST = 4 << 20  # bytes of one that travels because it is none of them
PARTS, CONSTANTS = "weights.json", "constants.npz"
_UNSCALED = ("SelfAttention.q.weight", 64**-0.5)  # T5's scores are not divided by sqrt(depth)


def draw(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Draw a parameter from a stream of its own: uniform, with the deviation that its role asks.

    The numbers are 16-bit integers times a power-free scale, rounded once to float16, so that every
    machine draws the same bits.

    Parameters
    ----------
    name
        Of the parameter in its module.
    shape
        Matrices that are multiplied get a deviation of one over the root of their inputs.

    Returns
    -------
    numpy.ndarray
        float16.
    """
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    stream = np.random.Generator(np.random.PCG64([seed, key]))
    integers = np.frombuffer(stream.bytes(2 * math.prod(shape)), np.int16).reshape(shape)
    center, deviation = _moments(name, shape)
    values = integers * np.float32(deviation * math.sqrt(3) / 2**15)
    return (values + np.float32(center)).astype(np.float16)


def _moments(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if len(shape) == 1:
        return float(name.endswith("weight")), 0.1  # of a norm, or a bias
    is_table = any(word in name for word in ("embed", "shared", "wte", "wpe", "cls_token", "bias"))
    if is_table and "projection" not in name:
        return 0.0, 0.1
    transposed = ".c_" in name  # GPT-2's Conv1D
    inputs = shape[0] if transposed else math.prod(shape[1:])
    return 0.0, inputs**-0.5 * (_UNSCALED[1] if name.endswith(_UNSCALED[0]) else 1)


def drop(folder: Path, parameters: Mapping[str, np.ndarray]) -> None:
    """Replace an artifact's file of weights by how they are made of a module's parameters.

    Raises
    ------
    ValueError
        For a large weight that is no parameter, nor several side by side.
    """
    parts: dict[str, Any] = {}
    constants: dict[str, np.ndarray] = {}
    for name, array in weights_file.read(folder, manifest.read(folder)).items():
        made = _parts(array, parameters) if array.nbytes > LEAST else None
        if made is not None:
            parts[name] = made
        elif array.nbytes <= LARGEST:
            constants[name] = array
        else:
            raise ValueError(f"{name} of {folder} is not made of parameters")
    np.savez_compressed(folder / CONSTANTS, allow_pickle=False, **constants)
    (folder / PARTS).write_text(json.dumps(parts) + "\n")
    (folder / manifest.WEIGHTS).unlink()


def restore(folder: Path, parameters: Mapping[str, np.ndarray]) -> None:
    """Write the file of weights of an artifact that travelled without it.

    Raises
    ------
    tvm_fusion.UserError
        If one bit of it differs from what was compiled.
    """
    found = json.loads((folder / manifest.MANIFEST).read_text())
    with (folder / manifest.WEIGHTS).open("wb") as file:
        file.truncate(found["files"][manifest.WEIGHTS]["bytes"])
    data = np.memmap(folder / manifest.WEIGHTS, np.uint8, mode="r+")
    parts = json.loads((folder / PARTS).read_text())
    with np.load(folder / CONSTANTS) as constants:
        for name, entry in found["weights"].items():
            array = _made(parts[name], parameters) if name in parts else constants[name]
            place = data[entry["offset"] : entry["offset"] + entry["bytes"]]
            place[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    data.flush()
    manifest.verify(folder, found, [manifest.WEIGHTS])


def _view(array: np.ndarray, transposed: bool) -> np.ndarray:
    """Transpose a matrix, or bring the input channels of a convolution behind its window."""
    if not transposed:
        return array
    return array.T if array.ndim == 2 else np.moveaxis(array, 1, -1)


def _parts(whole: np.ndarray, parameters: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """Find the parameters that a weight is made of, and the axis along which they lie."""
    for name, array in parameters.items():
        if array.size != whole.size or array.dtype != whole.dtype:
            continue
        for turned in (False, True) if array.ndim > 2 else (False,):
            if np.array_equal(_view(array, turned).reshape(-1), whole.reshape(-1)):
                return {"axis": 0, "pieces": [[name, turned]]}
    if whole.ndim != 2:
        return None
    for axis in (0, 1):
        pieces = _pieces(whole, axis, parameters)
        if pieces is not None:
            return {"axis": axis, "pieces": pieces}
    return _behind_norm(whole, parameters)


def _behind_norm(whole: np.ndarray, parameters: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """Find matrices side by side that a norm's scale was multiplied into, and the scale."""
    matrices = [
        (name, turned, _view(array, turned))
        for name, array in parameters.items()
        for turned in (False, True)
        if array.ndim == 2 and array.dtype == whole.dtype
    ]
    matrices = [m for m in matrices if len(m[2]) == len(whole)]
    for scale, is_centred in (
        (n, c) for n, a in parameters.items() if a.shape == whole.shape[:1] for c in (True, False)
    ):
        pieces: list[list[Any]] = []
        start = 0
        while start < whole.shape[1]:
            for name, turned, matrix in matrices:
                first = parameters[scale].astype("float32") * matrix[:, 0].astype("float32")
                first -= first.mean() if is_centred else 0
                if np.allclose(first, whole[:, start].astype("float32"), 0, 1e-3 * np.ptp(first)):
                    pieces.append([name, turned])
                    start += matrix.shape[1]
                    break
            else:
                break
        made = {"axis": 1, "pieces": pieces, "norm": [scale, is_centred]}
        if start == whole.shape[1] and np.array_equal(_made(made, parameters), whole):
            return made
    return None


def _made(part: Mapping[str, Any], parameters: Mapping[str, np.ndarray]) -> np.ndarray:
    """Make a weight of its parameters."""
    pieces = [_view(parameters[p], turned) for p, turned in part["pieces"]]
    whole = np.concatenate(pieces, part["axis"])
    if "norm" not in part:
        return whole
    scale, is_centred = part["norm"]
    return fold(parameters[scale], whole, is_centred)


def _pieces(
    whole: np.ndarray, axis: int, parameters: Mapping[str, np.ndarray]
) -> list[list[Any]] | None:
    """Find parameters one behind the other along an axis of a matrix."""
    taken, start = [], 0
    matrices = {name: a for name, a in parameters.items() if a.ndim == 2 and a.dtype == whole.dtype}
    while start < whole.shape[axis]:
        rest = whole[start:] if axis == 0 else whole[:, start:]
        for (name, array), transposed in ((i, t) for i in matrices.items() for t in (False, True)):
            piece = _view(array, transposed)
            extent = piece.shape[axis]
            begin = rest[:extent] if axis == 0 else rest[:, :extent]
            fits = piece.shape == begin.shape and np.array_equal(piece[:2, :2], begin[:2, :2])
            if fits and np.array_equal(piece, begin):
                taken.append([name, transposed])
                start += extent
                break
        else:
            return None
    return taken
