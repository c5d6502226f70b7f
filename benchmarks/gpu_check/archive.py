"""The folder that travels: ``index.json``, ``arrays.npz``, the libraries, the launch counter."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_fusion.errors import UserError

INDEX, ARRAYS, COUNTER = "index.json", "arrays.npz", "launches.so"
_ARRAY = "__array__"


def prepare(folder: Path) -> None:
    """Make an empty folder, or empty one that :func:`write` or this function made.

    Raises
    ------
    UserError
        If it holds anything else.
    """
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / INDEX).is_file():
            raise UserError(f"{folder} holds other files", "a new folder or an earlier build")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_text("{}\n")


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Write what tells of the libraries.

    Parameters
    ----------
    folder
        Holds the libraries.
    content
        Plain data and numpy arrays in dicts and lists; arrays go into a file of their own.
    """
    arrays: dict[str, np.ndarray] = {}
    (folder / INDEX).write_text(json.dumps(_without_arrays(content, arrays), indent=1) + "\n")
    np.savez_compressed(folder / ARRAYS, allow_pickle=False, **arrays)


def read(folder: Path) -> dict[str, Any]:
    """Read what :func:`write` wrote."""
    with np.load(folder / ARRAYS) as arrays:
        return _with_arrays(json.loads((folder / INDEX).read_text()), arrays)


def _without_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, Mapping):
        return {key: _without_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(item, arrays) for item in value]
    return value


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY]]
        return {key: _with_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    return value


def compile_counter(folder: Path, compiler: str = "cc") -> None:
    """Build the library that counts launches."""
    source = Path(__file__).with_name("launches.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", str(source)]
    subprocess.run([*command, "-ldl", "-o", str(folder / COUNTER)], check=True)
