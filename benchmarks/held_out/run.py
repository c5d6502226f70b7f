"""Compile, check and time the models where the device is, against TorchInductor.

``python3 -m benchmarks.held_out.run [--only NAME ...] [--at-once 17] [--seconds N]`` needs PyTorch,
transformers and TVM with its compiler; the record goes to ``held_out.json`` in $OUT. Models compile
side by side, then one after the other is timed while the others wait.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.workers import Worker

from .models import MODELS

MODULE = "benchmarks.held_out.worker"
AT_ONCE = 17
TIMING_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; returns the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="models that compile together")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this run")
    parser.add_argument("--json", type=Path, help="default: held_out.json in $OUT, if it is set")
    options = parser.parse_args(arguments)
    path = options.json or Path(os.environ.get("OUT", "."), "held_out.json")
    names = options.only or [*MODELS]
    end = time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    for first in range(0, len(names), options.at_once):
        for row in _together(names[first : first + options.at_once], end):
            rows.append(row)
            print(_text(row), flush=True)
            path.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


def _together(names: Sequence[str], end: float) -> Iterator[dict[str, Any]]:
    """Let models compile side by side, and time those that are right; yields their rows."""
    environment = {
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "2",
        "TVM_NUM_THREADS": "2",
    }
    workers = {
        name: Worker("-m", MODULE, name, environment=environment, folder=Path.cwd())
        for name in names
    }
    ready = {n: w.answer(max(1.0, end - time.monotonic())) for n, w in workers.items()}
    for name, worker in workers.items():
        row = ready[name]
        if not row["wrong"]:
            worker.send("go")
            row |= worker.answer(TIMING_SECONDS)
        worker.close()
        yield {"name": name, **row}


def _text(row: dict[str, Any]) -> str:
    if row["wrong"]:
        return f"{row['name']:16} WRONG: {row['wrong']}"
    us = "  ".join(f"{name} {value:8.1f}" for name, value in row["us"].items())
    ratio = min(v for side, v in row["us"].items() if side != "ours") / row["us"]["ours"]
    return f"{row['name']:16} {ratio:5.2f}  {us}  {row['kernels']} kernels  {row['compile_s']} s"


if __name__ == "__main__":
    sys.exit(main())
