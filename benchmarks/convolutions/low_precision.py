"""Layers of ResNet-50 in float32, bfloat16, float16, and bytes take turns, on one thread.

``python -m benchmarks.convolutions.low_precision`` writes ``results/low_precision.json`` and
``LOW_PRECISION.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import environment
from benchmarks.harness.client import ROOT, THREAD_VARIABLES
from benchmarks.markdown import table
from benchmarks.records import text

from .layers import NETWORKS, Layer

HERE = Path(__file__).parent
RECORD = HERE / "results" / "low_precision.json"
NETWORK = "ResNet-50"
DTYPES = ("float32", "bfloat16", "float16", "uint8")
SECONDS, CALLS = 1.0, (10, 2000)
# Of the largest result: half types round a sum, and once more with the bias; bytes are steps.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2.0**-7, "float16": 2.0**-10, "uint8": 0.0}


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the table again, no more")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        for layer in NETWORKS[NETWORK]:
            print(json.dumps({"layer": layer.name, **_compare(layer)}), flush=True)
        return 0
    record: dict[str, Any] = json.loads(RECORD.read_text()) if args.render else {"layers": {}}
    if not args.render:
        record["environment"] = environment.describe(ROOT)
        record["layers"] = {one.pop("layer"): one for one in _measured()}
    RECORD.write_text(text(record))
    (HERE / "LOW_PRECISION.md").write_text(_render(record))
    return 0


def _measured() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", __spec__.name, "--here"]
    settings = dict.fromkeys(THREAD_VARIABLES, "1") | {"TVM_BIND_THREADS": "0"}
    run = subprocess.run(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


def _compare(layer: Layer) -> dict[str, Any]:
    from .measure import STEP, build, reference

    runs, errors = {}, {}
    for dtype in DTYPES:
        given = _draw(layer, dtype)
        runs[dtype], result, _ = build(layer, *given)
        exact = reference(layer, *given)
        if dtype == "uint8":
            exact = np.clip(np.rint(exact * STEP.value.numpy()), 0, 255)
        found = result().astype("float64")
        errors[dtype] = float(np.abs(found - exact).max() / np.abs(exact).max())
        if not errors[dtype] <= TOLERANCES[dtype]:
            raise SystemExit(f"{layer.name} in {dtype} differs from float64 by {errors[dtype]}")
    best = dict.fromkeys(DTYPES, math.inf)
    calls, end = 0, time.monotonic() + SECONDS
    while calls < CALLS[0] or (time.monotonic() < end and calls < CALLS[1]):
        for dtype, run in runs.items():
            start = time.thread_time()
            run()
            best[dtype] = min(best[dtype], time.thread_time() - start)
        calls += 1
    least = {dtype: seconds * 1e6 for dtype, seconds in best.items()}
    return {"flops": layer.flops, "least_us": least, "errors": errors}


def _draw(layer: Layer, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw an image, a weight and a bias."""
    import ml_dtypes  # noqa: F401  numpy's bfloat16

    from .measure import draw

    if dtype != "uint8":
        image, weight, bias = (a.astype(dtype) for a in draw(layer))
        return image, weight, bias
    rng = np.random.default_rng(0)
    shape = (layer.k, layer.c // layer.groups, layer.window, layer.window)
    image = rng.integers(0, 256, (1, layer.c, layer.size, layer.size)).astype("uint8")
    weight = rng.integers(-128, 128, shape).astype("int8")
    return image, weight, rng.integers(-5000, 5000, layer.k).astype("int32")


def _render(record: dict[str, Any]) -> str:
    where, layers = record["environment"], record["layers"]
    rows, ratios = [], {dtype: [] for dtype in DTYPES}
    for name, one in layers.items():
        least = one["least_us"]
        for dtype in DTYPES:
            ratios[dtype].append(least["float32"] / least[dtype])
        rows.append(
            [
                name,
                *(f"{least[dtype]:.0f}" for dtype in DTYPES),
                f"{one['flops'] / least['uint8'] / 1e3:.0f}",
                *(f"{ratios[dtype][-1]:.2f}" for dtype in DTYPES[1:]),
            ]
        )
    means = [math.exp(sum(map(math.log, ratios[d])) / len(layers)) for d in DTYPES[1:]]
    rows.append(["geometric mean", *[""] * 5, *(f"{mean:.2f}" for mean in means)])
    headings = ["layer", *(f"{dtype}, us" for dtype in DTYPES), "uint8, 10^9 operations/s"]
    headings += [f"speed of {dtype}" for dtype in DTYPES[1:]]
    lines = [
        "# Convolutions of half types and of bytes beside float32",
        "",
        "Generated by `python -m benchmarks.convolutions.low_precision`; edits are lost.",
        "",
        f"{where.get('cpu')}, {where.get('date')}. Layers of {NETWORK}, batch 1, with bias; images "
        "and results in blocks of 16 channels (the first layer reads a plain image), weights "
        "packed before. Bytes are uint8 images and int8 weights, summed in int32, scaled, rounded "
        "and clipped to uint8; half types are summed in float32. All take turns in one process, "
        "one thread, the quickest call of each in CPU time, after a comparison with float64. "
        "Speeds are relative to float32.",
        "",
        *table(headings, rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os._exit(main())  # without waiting for threads that spin
