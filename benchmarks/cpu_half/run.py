"""Compile the models in both precisions, then check and time each with 1, 2 and 16 threads.

``python3 -m benchmarks.cpu_half.run DIR [--only NAME ...] [--threads 1 2 16] [--jobs 16]`` needs
PyTorch, transformers, TVM with its compiler and, for the peer, OpenVINO; the record goes to
``cpu_half.json`` in $OUT, each row when it is measured. What DIR has is not compiled again;
``--prepare`` compiles alone. ``--at-once 4`` measures four models side by side, on cores of their
own; ``--seconds`` ends what is not done by then.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.rows import answered, measured
from tvm_fusion.device import parse

from .prepare import PEER, PREPARED

THREADS = (1, 2, 16)
SECONDS = 45.0  # for one row

Made = Mapping[tuple[str, str], Future[dict[str, Any]]]  # of a model, and what is made of it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; returns the exit code: 1 if anything is missing."""
    from .models import MODELS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the artifacts")
    parser.add_argument("--only", nargs="*", default=[*MODELS], help="names")
    parser.add_argument("--threads", type=int, nargs="*", default=THREADS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--at-once", type=int, default=1, help="models that are measured at once")
    parser.add_argument("--prepare", action="store_true", help="compile, and measure nothing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this run")
    parser.add_argument("--json", type=Path, help="default: cpu_half.json in $OUT, if it is set")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    with ThreadPoolExecutor(options.jobs) as pool:
        made = prepare(options.only, options.folder, pool, end)
    path = options.json or Path(os.environ.get("OUT", "."), "cpu_half.json")
    threads = () if options.prepare else options.threads
    return measure(made, options.folder, path, threads, options.at_once, end)


def prepare(names: Sequence[str], folder: Path, pool: Executor, end: float) -> Made:
    """Start to compile, each model and precision in a process that ends in time."""

    def start(name: str, what: str) -> Future[dict[str, Any]]:
        return pool.submit(answered, "benchmarks.cpu_half.prepare", folder, name, what, end=end)

    return {(name, what): start(name, what) for name in names for what in PREPARED}


def measure(
    made: Made, folder: Path, path: Path, threads: Sequence[int], at_once: int, end: float
) -> int:
    """Measure what has been made, and write each row to the record; returns the exit code."""
    wrong = {case: told for case, future in made.items() if (told := future.result()["wrong"])}
    failed = [f"{name} {what}: {told}" for (name, what), told in wrong.items()]
    print(*failed, sep="\n", flush=True)
    device = {"name": parse("cpu").device.arch, "machine": platform.processor()}
    record: dict[str, Any] = {"about": device | {"failed": failed}, "rows": []}
    lost = {name for name, what in wrong if what != PEER}
    cases = [(folder, name) for name in dict.fromkeys(name for name, _ in made) if name not in lost]
    if threads:
        records.write(path, record)
    for count in threads:
        rows = measured("benchmarks.cpu_half.worker", cases, count, at_once, end, SECONDS)
        for (_, name), row in rows:
            if "wrong" in row:
                failed.append(f"{name}, {count} threads: {row['wrong']}")
            else:
                record["rows"].append(row)
            print(failed[-1] if "wrong" in row else _text(row), flush=True)
            records.write(path, record)
    return int(bool(failed))


def _text(row: dict[str, Any]) -> str:
    ms = "  ".join(f"{side} {value:8.2f}" for side, value in row["ms"].items())
    errors = "  ".join(f"{side} {value:.1e}" for side, value in row["errors"].items())
    return f"{row['name']:14} {row['threads']:2} threads  {ms} ms  errors {errors}"


if __name__ == "__main__":
    sys.exit(main())
