"""The command line: compile, write ``results/compile_time.json.xz``, print the page."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from benchmarks import zoo
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.records import read, write

from .table import COUNTS, LAYERED, RECORD, page

# What is compiled, and for what: a model of the zoo or of benchmarks.gpu_models, as many layers of
# GPT-2's decoder, or of a model of equal layers.
CASES = (
    ("2", "cpu"),
    ("llama_4l", "cpu"),
    ("bert_base", "cpu"),
    ("mobilenet_v2", "cpu"),
    ("swin_tiny", "cpu"),
    ("light_densenet121", "cpu"),
    ("mobilenet_v2", "cuda:sm_90a"),
    ("swin_tiny", "cuda:sm_90a"),
    ("diffusion_unet_batch_1", "cuda:sm_90a"),
    ("vae_decoder_batch_1", "cuda:sm_90a"),
    *((f"{model}_{count}", target) for model, target in LAYERED for count in COUNTS),
)


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="MODEL", help="by default all")
    options = parser.parse_args()
    record: dict[str, Any] = {"environment": environment.describe(ROOT), "cases": {}}
    if options.only:
        record["cases"] = read(RECORD)["cases"]
    for model, target in CASES:
        if not options.only or model in options.only:
            record["cases"][f"{model} {target}"] = _measure(model, target)
            write(RECORD, record)
    print(page())
    return 0


def _measure(model: str, target: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        given = model
        if model in zoo.names():
            given = str(Path(folder, f"{model}.onnx"))
            onnx.save(zoo.load(model), given)
        command = [sys.executable, "-m", "benchmarks.compile_time.sample", given, target]
        python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            command,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path},
        )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    raise SystemExit(main())
