"""Compile one file with its ranges, run it without the compiler, compare and time it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tvm_fusion
from tvm_fusion.config import parse_dims
from tvm_fusion.deploy.runtime.arguments import evaluate
from tvm_fusion.signature import DimRange

from .files import File
from .runner import with_constants

GPU = "cuda:sm_90a"
#: Largest difference of a result, over the largest value of ONNX Runtime's.
BOUND = 1e-3
#: How much further off a result may be than ONNX Runtime's own without its optimizations: where
#: numbers are rounded to bytes, an order of sums decides to which.
WITHIN = 4
#: Outputs below it are compared absolutely: ONNX Runtime's sigmoid is right to 1e-7, not to digits,
#: and a detector that finds nothing gives no larger value.
_SMALL = 1e-3
_LARGE = 256  # the upper extent of the second and third size, or four times the least: seconds


def measure(file: File, path: Path, threads: tuple[int, ...], gpu: bool) -> dict[str, Any]:
    """Return a row of the record: what came out, or the sentence of a refusal."""
    row: dict[str, Any] = {
        "name": file.name,
        "package": file.package,
        "version": file.version,
        "path": file.path,
        "dims": dict(file.dims),
        "constants": dict(file.constants),
    }
    options = {
        "dims": parse_dims(f"{name}={text}" for name, text in file.dims.items()),
        "constants": {name: np.asarray(value) for name, value in file.constants.items()},
    }
    try:
        start = time.perf_counter()
        artifact = tvm_fusion.compile(path, target="cpu", **options)
        row["compile_s"] = time.perf_counter() - start
        with tempfile.TemporaryDirectory(prefix="real-models-") as folder:
            artifact.export(Path(folder) / "artifact")
            row |= _compared(file, path, artifact.manifest, Path(folder))
            if is_right(row):
                for count in threads:
                    row[f"threads_{count}"] = _timed(file, path, Path(folder), count)
    # guard: the row says what was refused, or failed; the others are measured
    except Exception as error:
        return row | {"failed": str(error).strip().splitlines()[0]}
    if gpu:
        try:
            code = tvm_fusion.compile(path, target=GPU, precision="fp16", **options).manifest
            row["gpu_kernels"] = code["functions"]["main"]["kernels"]
        except Exception as error:  # guard: the row says so
            row["gpu_failed"] = str(error).strip().splitlines()[0]
    return row


def _compared(file: File, path: Path, manifest: dict[str, Any], folder: Path) -> dict[str, Any]:
    import onnxruntime

    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    provider = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(path, providers=provider)
    itself = onnxruntime.InferenceSession(path, plain, providers=provider)
    names = [info.name for info in session.get_outputs()]
    dims = {
        name: DimRange(d["min"], d["max"], d.get("step", 1)) for name, d in manifest["dims"].items()
    }
    all_sizes, wanted = sizes(dims, file.tied), []
    for number, extents in enumerate(all_sizes):
        given = draw(manifest["functions"]["main"]["inputs"], extents, number, file.below)
        np.savez(folder / f"in{number}.npz", **given)
        feeds = with_constants(session, given, dict(file.constants))
        wanted.append([one.run(None, feeds) for one in (session, itself)])
    _run(folder)
    errors, own = [], []
    for number, (expected, other) in enumerate(wanted):
        with np.load(folder / f"out{number}.npz") as found:
            errors += [difference(found[n], x) for n, x in zip(names, expected, strict=True)]
        own += [difference(x, y) for x, y in zip(other, expected, strict=True)]
    return {"sizes": all_sizes, "error": max(errors), "own_error": max(own)}


def is_right(row: dict[str, Any]) -> bool:
    """Whether all results of a row are as near to ONNX Runtime's as they should be."""
    return "error" in row and row["error"] <= max(BOUND, WITHIN * row.get("own_error", 0.0))


def sizes(dims: dict[str, DimRange], tied: Any = None) -> list[dict[str, int]]:
    """Return the least extents, some between, and the largest that take no minutes."""
    found = []
    for share in (0.0, 0.4, 1.0):
        extents = {}
        for number, (name, r) in enumerate(dims.items()):
            high = min(r.high, max(4 * r.low, _LARGE * (1 + number % 2)))
            steps = int(share * (high - r.low) / r.step + 0.5 * (0 < share < 1))
            extents[name] = r.low + steps * r.step
        for name, other in (tied or {}).items():
            if name in extents and other in extents:
                extents[name] = extents[other]
        found.append(extents)
    return found


def draw(
    specs: list[dict[str, Any]], extents: dict[str, int], seed: int, below: int
) -> dict[str, Any]:
    """Draw inputs: floats between 0 and 1, integers from 0."""
    generator, found = np.random.default_rng(seed), {}
    for spec in specs:
        shape = [evaluate(extent, extents) or 0 for extent in spec["shape"]]
        kind = np.dtype(spec["dtype"])
        drawn = generator.random(shape) if kind.kind == "f" else generator.integers(0, below, shape)
        found[spec["name"]] = np.asarray(drawn).astype(kind)
    return found


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the largest value, or ``_SMALL``; infinite for shapes.

    NaN is equal to NaN, and infinitely far from anything else; nothing but NaN shows nothing.
    """
    if found.shape != expected.shape:
        return float("inf")
    wide, own = expected.astype("float64"), found.astype("float64")
    is_nan = np.isnan(wide)
    if (is_nan != np.isnan(own)).any():
        return float("inf")
    if not wide.size:
        return 0.0
    if is_nan.all():
        return float("inf")
    wide, own = wide[~is_nan], own[~is_nan]
    scale = max(float(np.abs(wide).max()), _SMALL)
    return float(np.abs(own - wide).max() / scale)


def _run(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "benchmarks.real_models.runner", str(folder), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise RuntimeError(f"running the artifact failed ({last})")
    return result.stdout


def _timed(file: File, path: Path, folder: Path, threads: int) -> dict[str, float]:
    constants = json.dumps(dict(file.constants))
    text = _run(folder, "--times", str(path), "--threads", str(threads), "--constants", constants)
    return dict(json.loads(text.splitlines()[-1]))
