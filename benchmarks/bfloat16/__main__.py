"""Compare models in bfloat16 with float32: ``python -m benchmarks.bfloat16 [NAME...]``.

Needs the extra ``zoo``. Each model runs in a process of its own, which is given ten minutes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import tvm_fusion
from benchmarks import records
from benchmarks.markdown import table

from .models import NAMES, build

HERE = Path(__file__).parent
RECORD = HERE / "results" / "bfloat16.json"
SECONDS = 600
#: How much larger than eager's an error may be: both are the largest of thousands of roundings.
WITHIN = 1.5
INTRODUCTION = """# Models in bfloat16 on a CPU

Generated from `results/bfloat16.json` by `python -m benchmarks.bfloat16`; edits are lost.

Weights and inputs are rounded to bfloat16 once. The reference computes with them in float32; the
columns say how far PyTorch eager in bfloat16 and this package's module of the same exported program
are from it: the largest difference over the largest value, and the mean difference over the mean
value.
"""


def main() -> int:
    """Measure, and write the record and its page; returns 1 where a model is not within eager's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bfloat16", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return 0
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in options.names or NAMES:
        found[name] = _in_a_process(name)
        print(name, found[name], file=sys.stderr, flush=True)
    found = {name: found[name] for name in NAMES if name in found}
    RECORD.write_text(records.text(found))
    (HERE / "README.md").write_text(page(found))
    return 0 if all(map(is_right, found.values())) else 1


def measure(name: str) -> dict[str, Any]:
    """Return both errors of a model."""
    module, inputs = build(name)
    module.bfloat16()
    inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)
    with torch.no_grad():
        eager = module(*inputs).float()
        program = torch.export.export(module, inputs)
        artifact = tvm_fusion.compile(program, "cpu")
        wide = tuple(x.float() if x.is_floating_point() else x for x in inputs)
        expected = module.float()(*wide)
    with tempfile.TemporaryDirectory() as folder:
        executable = tvm_fusion.load(artifact.export(f"{folder}/a"))
        names = program.graph_signature.user_inputs
        given = {n: _numpy(x) for n, x in zip(names, inputs, strict=True)}
        (ours,) = executable.run(given).values()
    return {
        "eager": _errors(eager, expected),
        "ours": _errors(torch.from_numpy(ours.astype("float32")), expected),
    }


def is_right(result: dict[str, Any]) -> bool:
    """Whether a model compiled, and is as near to float32 as eager PyTorch."""
    return "ours" in result and all(
        mine <= WITHIN * theirs
        for mine, theirs in zip(result["ours"], result["eager"], strict=True)
    )


def page(found: dict[str, Any]) -> str:
    """Return the page for a record."""
    rows = []
    for name, result in found.items():
        cells = [result.get("reason", "")] * 4
        if "ours" in result:
            cells = [f"{x:.1e}" for x in (*result["eager"], *result["ours"])]
        rows.append([name, *cells, "yes" if is_right(result) else "**no**"])
    headings = [
        "model",
        "eager, largest",
        "eager, mean",
        "this package, largest",
        "this package, mean",
        "within 1.5x",
    ]
    return "\n".join([INTRODUCTION, *table(headings, rows), ""])


def _numpy(x: torch.Tensor) -> Any:
    import ml_dtypes

    return (
        x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.is_floating_point() else x.numpy()
    )


def _errors(y: torch.Tensor, expected: torch.Tensor) -> list[float]:
    apart = (y - expected).abs()
    errors = (apart.max() / expected.abs().max(), apart.mean() / expected.abs().mean())
    return [float(f"{float(e):.3g}") for e in errors]


def _in_a_process(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.bfloat16", "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"reason": f"longer than {SECONDS} s"}
    if done.returncode:
        return {"reason": ([*done.stderr.strip().splitlines(), ""])[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
