"""Time artifacts against ONNX Runtime, each in a process with cores of its own."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cores import core_sets, python, side_by_side

from .files import File


def times(
    files: Iterable[File], places: Mapping[str, Path], kept: Path, threads: int
) -> Iterator[tuple[File, dict[str, Any]]]:
    """Yield the milliseconds of each file's artifact for the CPU, or why there are none."""

    def one(file: File, cpus: set[int]) -> dict[str, Any]:
        path = places[file.name]
        return timed(kept / "cpu" / file.name, cpus, "--threads", str(threads), "--times",
                     str(path), "--constants", json.dumps(dict(file.constants)))  # fmt: skip

    yield from side_by_side(one, files, core_sets(threads))


def timed(folder: Path, cpus: set[int], *options: str) -> dict[str, Any]:
    """Time one artifact, against ONNX Runtime where options name the file."""
    arguments = ("-m", "benchmarks.real_models.runner", str(folder), *options)
    try:
        printed = python(arguments, {}, cpus)
    except RuntimeError as error:
        return {"failed": str(error)}
    return dict(json.loads(printed.splitlines()[-1]))
