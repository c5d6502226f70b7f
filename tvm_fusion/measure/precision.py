"""Which storage type is the fastest whose error stays within a bound, by running the model.

for each precision:  compile;  run on inputs;  largest error of an output against float32
time those within the bound in turns;  the fastest is taken
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..config import STORED, Precision
from ..deploy.build.artifact import Artifact
from ..deploy.runtime.artifact.manifest import main_function
from ..deploy.runtime.executable import Executable
from ..deploy.runtime.load import load
from ..deploy.runtime.tensors import to_numpy
from ..device import TargetSpec, cuda_devices, host_cpu, rocm_devices
from ..errors import UserError
from .errors import TOLERANCE, errors
from .inputs import drawn_inputs
from .timing import Effort, in_turns

DRAWS = 3  # of inputs, where none are given
_EFFORT = Effort(seconds=1.0, fewest=5, most=200, hopeless=float("inf"))


def fastest_precision(
    compile_in: Callable[[Precision], Artifact],
    spec: TargetSpec,
    bound: float | None,
    samples: Mapping[str, Any],
) -> Artifact:
    """Compile a model in every precision and choose one.

    Parameters
    ----------
    compile_in
        Compiles the model in a precision.
    bound
        Largest max|a-b|/max|b| of an output, against float32's; the tolerance of `check` for the
        precision when omitted.
    samples
        Inputs of ``main``; those that are not there are random.

    Returns
    -------
    Artifact
        Its manifest lists under ``precisions`` what was measured.

    Raises
    ------
    UserError
        For a target whose code does not run on this machine.
    """
    _check_runs_here(spec)
    with tempfile.TemporaryDirectory(prefix="tvm_fusion-") as folder:
        artifacts = {name: compile_in(name) for name in STORED}
        loaded = {name: load(one.export(Path(folder, name))) for name, one in artifacts.items()}
        function = main_function(loaded["fp32"].manifest)
        inputs = _inputs(loaded["fp32"], function, samples)
        results = {name: [_run(one, function, x) for x in inputs] for name, one in loaded.items()}
        measured: dict[Precision, dict[str, Any]] = {}
        for name, given in results.items():
            apart = _error(given, results["fp32"])
            most = TOLERANCE[name] if bound is None else bound
            measured[name] = {"precision": name, "error": apart, "bound": most}
        kept = [n for n, one in measured.items() if one["error"] <= one["bound"]]
        calls = [_call(loaded[name], function, inputs[0]) for name in kept]
        for name, us in zip(kept, in_turns(calls, _EFFORT), strict=True):
            measured[name]["milliseconds"] = us / 1e3
    chosen = artifacts[min(kept, key=lambda name: measured[name]["milliseconds"])]
    for one in measured.values():
        if not np.isfinite(one["error"]):  # which JSON cannot say
            one["error"] = None
    chosen.manifest["precisions"] = list(measured.values())
    return chosen


def _check_runs_here(spec: TargetSpec) -> None:
    here = set(host_cpu().features)
    runs = {
        "llvm": not spec.triple and any(here.issuperset(one.features) for one in spec.devices),
        "cuda": bool(cuda_devices()),
        "rocm": bool(rocm_devices()),
    }
    if not runs.get(spec.kind):
        raise UserError(
            f"precision 'auto' for {spec.text}, whose code does not run on this machine",
            "a target that does: the model is run in each precision",
            f"name the precision: {', '.join(STORED)}",
        )


def _inputs(
    executable: Executable, function: str, samples: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Complete the inputs that were given, or draw several; dimensions are as small as allowed."""
    specs = executable.signatures[function].inputs
    extents = {name: dim.least for name, dim in executable.dims.items()}
    for spec in specs:
        if spec.name in samples:
            given = zip(spec.shape, np.shape(samples[spec.name]), strict=False)
            extents.update({n: extent for n, extent in given if n in executable.dims})
    others = [spec for spec in specs if spec.name not in samples]
    generator = np.random.default_rng(0)
    draws = DRAWS if others else 1
    return [{**drawn_inputs(others, extents, generator), **samples} for _ in range(draws)]


def _as_taken(executable: Executable, function: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy inputs, which may be written to; those of half precision are rounded."""
    kinds = {spec.name: spec.dtype for spec in executable.signatures[function].inputs}
    return {
        name: np.array(x, kinds[name] if name in kinds and _is_float(np.asarray(x)) else None)
        for name, x in inputs.items()
    }


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind not in "iubc"


def _run(executable: Executable, function: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    found = executable.run(_as_taken(executable, function, inputs), function=function)
    return {n: np.array(x) if isinstance(x, np.ndarray) else to_numpy(x) for n, x in found.items()}


def _call(executable: Executable, function: str, inputs: Mapping[str, Any]) -> Callable[[], None]:
    given = _as_taken(executable, function, inputs)

    def call() -> None:
        executable.run(given, function=function)
        executable.synchronize()

    return call


def _error(results: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]]) -> float:
    """Return the largest error of an output over its largest value."""
    return max(
        errors(one[name], other[name])["max_rel_error"]
        for one, other in zip(results, expected, strict=True)
        for name in other
    )
