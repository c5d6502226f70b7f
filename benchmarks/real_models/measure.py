"""Compile one file with its ranges, run it without the compiler, and compare."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import tvm_fusion
from tvm_fusion.config import parse_dims
from tvm_fusion.deploy.runtime.arguments import evaluate
from tvm_fusion.device import cuda_devices
from tvm_fusion.signature import DimRange

from .files import FILES, File
from .runner import with_constants


def halved(path: Path) -> bytes:
    """Return a model with float32 weights and constants as float16 has them."""
    model = onnx.load(path)
    for tensor in _constants(model.graph):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = rounded(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return bytes(model.SerializeToString())


def halved_inputs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs, those of float32 as float16 has them."""
    return {n: rounded(x) if x.dtype == "float32" else x for n, x in given.items()}


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to float16 and back; what exceeds its range stays."""
    with np.errstate(over="ignore"):
        half = values.astype("float16").astype("float32")
    return np.where(np.isfinite(half), half, values).astype("float32")


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for inner in ([attribute.g] if attribute.HasField("g") else []) + [*attribute.graphs]:
                yield from _constants(inner)


#: What a file is compiled for, by the name of its part in a row: target and precision.
CELLS = {"cpu": ("cpu", "fp32"), "sm_90a": ("cuda:sm_90a", "fp16")}
#: Largest difference of a result, over the largest value of ONNX Runtime's, by precision.
BOUND = {"fp32": 1e-3, "fp16": 1e-2}
#: How much further off a result may be than ONNX Runtime's own without its optimizations: where
#: numbers are rounded to bytes, an order of sums decides to which. In float16: than ONNX Runtime's
#: with weights and inputs that are rounded to it.
WITHIN = 4
#: Outputs below it are compared absolutely: ONNX Runtime's sigmoid is right to 1e-7, not to digits,
#: and a detector that finds nothing gives no larger value.
_SMALL = 1e-3
_LARGE = 256  # the upper extent of the second and third size, or four times the least: seconds


def about(file: File) -> dict[str, Any]:
    """Return what a row says of a file whatever comes out."""
    return {
        "name": file.name,
        "package": file.package,
        "version": file.version,
        "path": file.path,
        "dims": dict(file.dims),
        "constants": dict(file.constants),
    }


def work(
    places: Mapping[str, Path], kept: Path, name: str, cells: Sequence[str], answers: Any
) -> None:
    """Work through cells of a file in a process of its own, see ``robustness.sweep.rows_of``."""
    answers.send(("export", {"outcome": "right"}))
    (file,) = (one for one in FILES if one.name == name)
    for cell in cells:
        answers.send((cell, None))
        answers.send((cell, measure(file, places[name], kept / cell / name, cell)))


def measure(file: File, path: Path, folder: Path, cell: str) -> dict[str, Any]:
    """Return a cell: what came out, or the sentence of a refusal. The folder gets the artifact."""
    target, precision = CELLS[cell]
    row: dict[str, Any] = {}
    try:
        start = time.perf_counter()
        artifact = tvm_fusion.compile(
            path,
            target=target,
            precision=precision,
            dims=parse_dims(f"{name}={text}" for name, text in file.dims.items()),
            constants={name: np.asarray(value) for name, value in file.constants.items()},
        )
        row["compile_s"] = time.perf_counter() - start
        row["kernels"] = artifact.manifest["functions"]["main"]["kernels"]
        folder.mkdir(parents=True, exist_ok=True)
        artifact.export(folder / "artifact")
        if cell != "cpu" and not cuda_devices():
            return {"outcome": "compiles", **row}
        row |= _compared(file, path, artifact.manifest, folder, precision)
        return {"outcome": "right" if is_near(row, precision) else "wrong", **row}
    except tvm_fusion.UserError as refusal:
        return {"outcome": "refused", **row, "reason": _first_line(refusal)}
    except Exception as error:  # guard: the row says what failed; the others are measured
        return {"outcome": "failed", **row, "reason": _first_line(error)}


def is_right(row: Mapping[str, Any]) -> bool:
    """Whether a row's results on the CPU are right."""
    return bool(row.get("cpu", {}).get("outcome") == "right")


def is_near(cell: Mapping[str, Any], precision: str) -> bool:
    """Whether all results are as near to ONNX Runtime's as they should be."""
    return bool(cell["error"] <= max(BOUND[precision], WITHIN * cell["own_error"]))


def _compared(
    file: File, path: Path, manifest: dict[str, Any], folder: Path, precision: str
) -> dict[str, Any]:
    import onnxruntime

    def session(model: Any, plain: bool = False) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # files are measured side by side
        if plain:
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.graph_optimization_level = level
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    is_half = precision == "fp16"
    theirs = session(path)
    itself = session(halved(path)) if is_half else session(path, plain=True)
    names = [info.name for info in theirs.get_outputs()]
    dims = {
        name: DimRange(d["min"], d["max"], d.get("step", 1)) for name, d in manifest["dims"].items()
    }
    all_sizes, wanted = sizes(dims, file.tied), []
    for number, extents in enumerate(all_sizes):
        given = draw(manifest["functions"]["main"]["inputs"], extents, number, file.below)
        np.savez(folder / f"in{number}.npz", **given)
        near = halved_inputs(given) if is_half else given
        pairs = ((theirs, given), (itself, near))
        wanted.append(
            [s.run(None, with_constants(s, x, dict(file.constants))) for s, x in pairs]
        )  # fmt: skip
    _run(folder)
    errors, own = [], []
    for number, (expected, other) in enumerate(wanted):
        with np.load(folder / f"out{number}.npz") as found:
            errors += [difference(found[n], x) for n, x in zip(names, expected, strict=True)]
        own += [difference(x, y) for x, y in zip(other, expected, strict=True)]
    return {"sizes": all_sizes, "error": max(errors), "own_error": max(own)}


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


def _run(folder: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.real_models.runner", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise RuntimeError(f"running the artifact failed ({last})")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
