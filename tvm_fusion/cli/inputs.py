"""Inputs of a model on the command line: files, or seeded random arrays."""

import argparse
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

from ..config import parse_dims
from ..errors import UserError, refuse_lfs_pointer
from ..measure.inputs import drawn_inputs
from ..signature import DimRange, Signature, TensorSpec
from ..words import counted

# How numpy describes ml_dtypes' float8_e5m2 in a file, and then cannot read it.
UNREADABLE = "<f1"
_MOST_THREADS = 256  # of the team that kernels run on


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a model is run on."""
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="one input's array"
    )
    parser.add_argument("--inputs", metavar="FILE.npz", help="arrays by input name")
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=N",
        help="extent of a symbolic dimension for random inputs (default: as in the given inputs, "
        "or its smallest)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random inputs (default: 0)")


def add_threads_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that says on how many of a CPU's threads kernels run."""
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads for kernels on a CPU (default: TVM_NUM_THREADS, or one per physical core)",
    )


def choose_threads(options: argparse.Namespace) -> None:
    """Set what ``--threads`` says; before the first artifact is loaded."""
    if options.threads is None:
        return
    if not 1 <= options.threads <= _MOST_THREADS:
        raise UserError(f"--threads {options.threads}", f"1 to {_MOST_THREADS}")
    os.environ["TVM_NUM_THREADS"] = str(options.threads)


def chosen_dims(
    inputs: Mapping[str, np.ndarray], signature: Signature, dims: Mapping[str, DimRange]
) -> dict[str, dict[str, int]]:
    """Say what symbolic dimensions a command was run at.

    Returns
    -------
    dict of str to dict
        By dimension that inputs have: ``extent``, ``min`` and ``max``, which are allowed.
    """
    extents = {
        label: int(extent)
        for spec in signature.inputs
        for label, extent in zip(spec.shape, np.shape(inputs[spec.name]), strict=False)
        if label in dims
    }
    return {
        name: {"extent": extents[name], "min": dim.low, "max": dim.high}
        for name, dim in dims.items()
        if name in extents
    }


def dims_line(dims: Mapping[str, Mapping[str, int]]) -> str | None:
    """Say in a line what symbolic dimensions a command was run at; None where there are none."""
    if not dims:
        return None
    at = ", ".join(f"{n}={d['extent']} (of {d['min']}..{d['max']})" for n, d in dims.items())
    smallest = all(d["extent"] == min(max(1, d["min"]), d["max"]) for d in dims.values())
    example = " ".join(f"--dim {name}={d['max']}" for name, d in dims.items())
    return f"at {at}" + (f", the smallest; others: {example}" if smallest else "")


def not_finite(array: np.ndarray) -> dict[str, int]:
    """Count what is no number in an array: ``nan`` and ``inf`` of both signs."""
    if not array.size or np.dtype(array.dtype).kind in "iub":
        return {"nan": 0, "inf": 0}
    values = array if array.dtype.kind in "fc" else array.astype(np.float32)
    return {"nan": int(np.isnan(values).sum()), "inf": int(np.isinf(values).sum())}


def not_finite_line(name: str, counts: Mapping[str, int], size: int) -> str | None:
    """Warn of an output with NaN or infinities; None where there are none."""
    kinds = {"nan": "NaN", "inf": "infinite"}
    found = [f"{counts[kind]} {text}" for kind, text in kinds.items() if counts[kind]]
    return f"{name}: {' and '.join(found)} of {counted(size, 'value')}" if found else None


def read_inputs(
    options: argparse.Namespace, signature: Signature, dims: Mapping[str, DimRange]
) -> dict[str, np.ndarray]:
    """Collect the inputs that the options name; random arrays stand in for the rest.

    Parameters
    ----------
    options
        With the fields that :func:`add_input_arguments` adds.
    signature
        Names, shapes and dtypes.
    dims
        Ranges of symbolic dimensions.

    Returns
    -------
    dict of str to numpy.ndarray
        Floats are drawn from a normal distribution, integers and booleans from {0, 1}.

    Raises
    ------
    UserError
        For files that cannot be read, unknown names and malformed options.
    """
    if options.seed < 0:
        raise UserError(f"--seed {options.seed}", "0 or more")
    specs = {spec.name: spec for spec in signature.inputs}
    given: dict[str, np.ndarray] = {}
    if options.inputs:
        given.update(_read(options.inputs, specs))
    for text in options.input:
        name, equals, path = text.partition("=")
        if not equals:
            raise UserError(f"--input {text!r}", "NAME=FILE.npy")
        if name in given:
            raise UserError(f"input {name!r} is given twice", "one array", "leave one of them out")
        given.update(_read(path, specs, name))
    extents = {name: dim.least for name, dim in dims.items()}
    for name, array in given.items():
        extents.update(zip(specs[name].shape, array.shape, strict=False))  # type: ignore[arg-type]
    for name, extent in _extents(options.dim, dims).items():
        if any(name in specs[one].shape for one in given) and extents[name] != extent:
            found = f"--dim {name}={extent}, and inputs of extent {extents[name]}"
            raise UserError(found, "equal extents", "leave --dim out, or give other inputs")
        extents[name] = extent
    others = [spec for spec in signature.inputs if spec.name not in given]
    drawn = drawn_inputs(others, extents, np.random.default_rng(options.seed))
    return {name: given[name] if name in given else drawn[name] for name in specs}


def _extents(texts: list[str], dims: Mapping[str, DimRange]) -> dict[str, int]:
    extents = {}
    for name, value in parse_dims(texts).items():
        if name not in dims:
            known = ", ".join(dims) or "none: all its shapes are fixed"
            raise UserError(f"--dim names {name!r}", f"a symbolic dimension of the model ({known})")
        if isinstance(value, DimRange):
            raise UserError(
                f"--dim {name}={value.text} is a range",
                "one extent",
                f"write {name}={value.low}",
            )
        if value not in dims[name]:
            found, allowed = f"--dim {name}={value}", dims[name].sentence
            advice = f"compile with --dim {name}={dims[name].with_extent(value).text}"
            raise UserError(found, allowed, advice if value > 0 else None)
        extents[name] = value
    return extents


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Read an .npz file of arrays of any names."""
    return _read(path, None)


def _read(
    path: str, specs: Mapping[str, TensorSpec] | None, name: str | None = None
) -> dict[str, np.ndarray]:
    """Read an .npz file of named arrays, or where ``name`` is given the .npy file of that one."""
    wanted = "a numpy .npy file" if name is not None else "a numpy .npz file"
    try:
        if Path(path).is_fifo() or Path(path).is_char_device():  # which may never end
            raise UserError(f"{path!r} is not a regular file", wanted)
        file = Path(path)
        refuse_lfs_pointer(file)
        content = _loaded(lambda: np.load(file, allow_pickle=False), file.read_bytes)
        if isinstance(content, np.ndarray) == (name is None):
            other = "--inputs FILE.npz" if name is not None else "--input NAME=FILE.npy"
            found, advice = f"{path!r} is the other kind of numpy file", f"pass it as {other}"
            raise UserError(found, wanted, advice)
        arrays = content if name is None else {name: content}
        if specs is None:
            return {found: _member(arrays, found) for found in arrays}
        for found in arrays:
            if found not in specs:
                known = ", ".join(map(repr, specs))
                raise UserError(f"unknown input {found!r}", f"one of {known}")
        return {found: _typed(_member(arrays, found), specs[found].dtype) for found in arrays}
    except OSError as error:
        raise UserError(f"cannot read {path!r} ({error.strerror})", wanted) from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        advice = f"write it with numpy.{'save' if name is not None else 'savez'}"
        raise UserError(
            f"{path!r} is damaged, or does not hold plain arrays", wanted, advice
        ) from error


def _member(arrays: Any, name: str) -> np.ndarray:
    """Take one array of an .npz file, or of a dictionary."""
    return _loaded(lambda: arrays[name], lambda: arrays.zip.read(f"{name}.npy"))


def _loaded(load: Callable[[], Any], data: Callable[[], bytes]) -> Any:
    """Load an array; one of :data:`UNREADABLE` elements as raw bytes."""
    try:
        return load()
    except ValueError:
        content, known = data(), f"'{UNREADABLE}'".encode()
        if known not in content[:128]:
            raise
        return np.load(io.BytesIO(content.replace(known, b"'|V1'", 1)), allow_pickle=False)


def _typed(array: np.ndarray, dtype: str) -> np.ndarray:
    """Restore a dtype that numpy's files do not keep: bfloat16 is read as raw bytes."""
    wanted = np.dtype(dtype)
    is_raw = wanted.kind == "V" or wanted.str == UNREADABLE
    if array.dtype.kind == "V" and is_raw and array.itemsize == wanted.itemsize:
        return array.view(wanted)
    return array
