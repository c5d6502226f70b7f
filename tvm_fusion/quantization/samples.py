"""Calibration data: inputs of a model from a folder or a file of numpy's."""

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from ..errors import UserError, refuse_lfs_pointer

_WANTED = "an .npz file, or a folder of .npz or .npy files"


@dataclass(frozen=True)
class Input:
    """An input of a float model: its name, dtype and extents, None where one is symbolic."""

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...]


def inputs_of(model: onnx.ModelProto) -> list[Input]:
    """List a model's inputs without those that are weights."""
    stored = {tensor.name for tensor in model.graph.initializer}
    found = []
    for info in model.graph.input:
        if info.name not in stored:
            kind = info.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            # Exporters write -1 for an extent that they do not know.
            dims = tuple(d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim)
            found.append(Input(info.name, np.dtype(dtype), dims))
    return found


def read_samples(
    data: str | os.PathLike[str], inputs: Sequence[Input], limit: int
) -> list[dict[str, np.ndarray]]:
    """Read samples as the model takes them.

    Parameters
    ----------
    data
        An ``.npz`` file of arrays by input name, or a folder of such files, in the order of their
        names; of a model with one input ``.npy`` files as well. The first axis of an array counts
        samples: it is cut into pieces of the model's own first extent, of one where that is
        symbolic. An array of a single piece, such as a rate or a state, is given to every call.
    limit
        Pieces that are read at most.

    Returns
    -------
    list of dict of str to numpy.ndarray
        Arrays by input name, a call's each.

    Raises
    ------
    UserError
        For data that is missing or cannot be read, and arrays that do not fit the model.
    """
    samples: list[dict[str, np.ndarray]] = []
    for path in _files(Path(data)):
        arrays = _arrays(path, inputs)
        samples += _pieces(path, arrays, inputs)[: limit - len(samples)]
        if len(samples) >= limit:
            break
    if not samples:
        raise UserError(f"{str(data)!r} has no samples", "at least one")
    return samples


def _files(data: Path) -> list[Path]:
    if data.is_dir():
        found = sorted(p for p in data.iterdir() if p.suffix in (".npz", ".npy") and p.is_file())
        if not found:
            raise UserError(f"folder {str(data)!r} has no .npz or .npy file", _WANTED)
        return found
    if not data.is_file():
        raise UserError(f"there is no file or folder {str(data)!r}", _WANTED)
    if data.suffix not in (".npz", ".npy"):
        raise UserError(f"{str(data)!r} is neither .npz nor .npy", _WANTED)
    return [data]


def _arrays(path: Path, inputs: Sequence[Input]) -> Mapping[str, np.ndarray]:
    names = ", ".join(repr(one.name) for one in inputs)
    refuse_lfs_pointer(path)
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.ndarray):
            arrays = {name: content[name] for name in content.files}
        elif len(inputs) == 1:
            arrays = {inputs[0].name: content}
        else:
            raise UserError(
                f"{str(path)!r} is one array, and the model has {len(inputs)} inputs",
                f"an .npz file of {names}",
            )
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        advice = "write it with numpy.savez"
        raise UserError(f"{str(path)!r} is no file of plain arrays", _WANTED, advice) from error
    known = {one.name for one in inputs}
    unknown, missing = sorted(arrays.keys() - known), sorted(known - arrays.keys())
    if unknown or missing:
        what = f"has an unknown input {unknown[0]!r}" if unknown else f"lacks input {missing[0]!r}"
        raise UserError(f"{str(path)!r} {what}", f"the inputs {names}")
    return arrays


def _pieces(
    path: Path, arrays: Mapping[str, np.ndarray], inputs: Sequence[Input]
) -> list[dict[str, np.ndarray]]:
    """Cut arrays along their first axes."""
    pieces: dict[str, list[np.ndarray]] = {}
    for one in inputs:
        array = arrays[one.name]
        what = f"input {one.name!r} in {str(path)!r} has"
        if array.dtype != one.dtype:
            found = f"{what} dtype {array.dtype}"
            raise UserError(found, str(one.dtype), f"cast it to {one.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UserError(f"{what} NaN or infinite values", "finite numbers")
        fits = array.ndim == len(one.shape) and all(
            extent in (None, size)
            for extent, size in zip(one.shape[1:], array.shape[1:], strict=True)
        )
        step = (one.shape[0] if one.shape else None) or 1
        if not fits or (array.ndim and array.shape[0] % step):
            rest = ", ".join("any" if e is None else str(e) for e in one.shape[1:])
            first = "samples" if step == 1 else f"a multiple of {step}"
            raise UserError(f"{what} shape {array.shape}", f"({first}, {rest})")
        if array.ndim:
            parts = [array[i : i + step] for i in range(0, array.shape[0], step)]
        else:
            parts = [array]
        pieces[one.name] = parts
    counts = {name: len(parts) for name, parts in pieces.items()}
    calls = next((count for count in counts.values() if count != 1), 1)
    if any(count not in (1, calls) for count in counts.values()):
        told = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise UserError(
            f"{str(path)!r} has {told}", "as many samples of each input, or one that all calls take"
        )
    return [
        {name: parts[i if len(parts) > 1 else 0] for name, parts in pieces.items()}
        for i in range(calls)
    ]
