"""Check: compare an artifact's results with a reference's."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...config import parse_constants
from ...errors import UserError
from ...measure.errors import TOLERANCE
from ..executable import add_artifact_argument, executable_of, is_model
from ..inputs import (
    add_input_arguments,
    chosen_dims,
    dims_line,
    not_finite,
    not_finite_line,
    read_inputs,
)
from ..model import add_constant_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_artifact_argument(parser)
    parser.add_argument(
        "model",
        nargs="?",
        help="the ONNX or .pt2 file that it was compiled from, if it is a folder",
    )
    add_input_arguments(parser)
    add_constant_argument(parser)
    parser.add_argument(
        "--tolerance",
        type=float,
        help="limit on max|a-b|/max|b| of each output (default: 1e-4 for fp32, 1e-2 fp16, "
        "5e-2 bf16)",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run both and compare.

    Returns
    -------
    dict
        ``passed``, ``max_abs_error``, ``max_rel_error`` (the worst output's max|a-b|/max|b|),
        ``tolerance``, ``reference``, ``outputs``: both errors and ``std`` by name, ``dims``: by
        symbolic dimension the ``extent`` that was compared, of ``min`` to ``max``, and
        ``not_finite``: by output that has some, how many values are ``nan`` and ``inf``, of
        ``values``. An error that is infinite is ``null`` in JSON.
    """
    from ...core.progress import report
    from ...deploy.runtime.artifact import manifest
    from ...deploy.runtime.load import load
    from ...deploy.runtime.tensors import to_numpy
    from ...report.reference import compare, reference

    tolerance = options.tolerance
    if tolerance is not None and not tolerance >= 0:
        raise UserError(f"--tolerance {tolerance}", "0 or more")
    model = options.model
    if model is None:
        if not is_model(options.artifact):
            source = manifest.read(Path(options.artifact))["source"]
            raise UserError(
                f"there is no model to compare {options.artifact} with",
                "the file that it was compiled from",
                f"`tvm-fusion check {options.artifact} MODEL`; it was called {source}",
            )
        model = options.artifact
        executable = executable_of(options)
    else:
        report("loading the artifact")
        executable = load(options.artifact)
    function = manifest.main_function(executable.manifest)
    signature = executable.signatures[function]
    inputs = read_inputs(options, signature, executable.dims)
    report("running the artifact")
    outputs = executable.run(inputs, function=function)
    arrays = {n: v if isinstance(v, np.ndarray) else to_numpy(v) for n, v in outputs.items()}
    report("running the reference")
    peer, expected = reference(model, inputs, parse_constants(options.constant))
    if tolerance is None:
        tolerance = TOLERANCE[executable.manifest["precision"]]
    report("comparing outputs")
    errors = compare(arrays, expected)
    worst = max(entry["max_rel_error"] for entry in errors.values())
    return {
        "passed": worst <= tolerance,
        "max_abs_error": max(entry["max_abs_error"] for entry in errors.values()),
        "max_rel_error": worst,
        "tolerance": tolerance,
        "reference": peer,
        "outputs": errors,
        "dims": chosen_dims(inputs, signature, executable.dims),
        "not_finite": {
            name: {**counts, "values": int(array.size)}
            for name, array in arrays.items()
            if any((counts := not_finite(array)).values())
        },
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the errors output by output."""
    for name, entry in result["outputs"].items():
        console.print(
            f"  {name}: max error {entry['max_abs_error']:.2e}, relative to the largest value "
            f"{entry['max_rel_error']:.2e}",
            markup=False,
        )
    if line := dims_line(result["dims"]):
        console.print(f"  {line}", markup=False, highlight=False)
    for name, found in result["not_finite"].items():
        line = not_finite_line(name, found, found["values"])
        console.print(f"  warning: {line}", style="yellow", markup=False, highlight=False)
    verdict = "[green]passed[/]" if result["passed"] else "[red]failed[/]"
    console.print(f"{verdict} against {result['reference']} (tolerance {result['tolerance']:g})")
