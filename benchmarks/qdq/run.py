"""Quantize and compile the models, then check and time each with some numbers of threads.

``python -m benchmarks.qdq.run DIR [--only NAME ...] [--threads 1 2 16] [--layers 12]`` needs
PyTorch, transformers, ONNX Runtime and, for the peer, OpenVINO; the record goes to ``qdq.json`` in
$OUT, each row when it is measured. What DIR has is not made again; ``--prepare`` makes and compiles
alone. ``--at-once 4`` measures four files side by side, on cores of their own; ``--seconds`` ends
what is not done by then.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.harness import environment
from benchmarks.rows import answered, measured
from benchmarks.workers import ROOT
from tvm_fusion.device import parse

from .files import FORMS, MODELS
from .prepare import FILES

THREADS = (1, 2, 16)
SECONDS = 60.0  # for one row

Made = Mapping[tuple[str, str], Future[dict[str, Any]]]  # of a model, and a form or its files


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; returns the exit code: 1 if anything is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.qdq.run", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the files and artifacts")
    parser.add_argument("--only", nargs="*", choices=MODELS, default=MODELS, help="models")
    parser.add_argument("--threads", type=int, nargs="*", default=THREADS)
    parser.add_argument("--layers", type=int, default=12, help="of an encoder; 2: two a stage")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--at-once", type=int, default=1, help="files that are measured at once")
    parser.add_argument("--prepare", action="store_true", help="compile, and measure nothing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this run")
    parser.add_argument("--json", type=Path, help="default: qdq.json in $OUT, if it is set")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    with ThreadPoolExecutor(options.jobs) as pool:
        files = make(options.only, options.layers, options.folder, pool, end)
        made = prepare(files, options.folder, pool, end)
    path = options.json or Path(os.environ.get("OUT", "."), "qdq.json")
    threads = () if options.prepare else options.threads
    about = {"layers": options.layers}
    return measure(made, about, options.folder, path, threads, options.at_once, end)


def make(names: Sequence[str], layers: int, folder: Path, pool: Executor, end: float) -> Made:
    """Start to make the files, each model's in a process that ends in time."""
    module = "benchmarks.qdq.prepare"
    return {
        (name, FILES): pool.submit(answered, module, folder, name, FILES, layers, end=end)
        for name in names
    }


def prepare(files: Made, folder: Path, pool: Executor, end: float) -> Made:
    """Start to compile files, each when it is made; submitted behind their makers."""

    def compiled(name: str, form: str, made: Future[dict[str, Any]]) -> dict[str, Any]:
        if made.result()["wrong"]:
            return made.result()
        return answered("benchmarks.qdq.prepare", folder, name, form, 0, end=end)

    return {
        (name, form): pool.submit(compiled, name, form, made)
        for (name, _), made in files.items()
        for form in FORMS
    }


def measure(
    made: Made,
    about: Mapping[str, Any],
    folder: Path,
    path: Path,
    threads: Sequence[int],
    at_once: int,
    end: float,
) -> int:
    """Measure what has been made, and write each row to the record; returns the exit code."""
    told = {case: future.result()["wrong"] for case, future in made.items()}
    failed = {", ".join(case): reason for case, reason in told.items() if reason}
    record: dict[str, Any] = {
        "about": {
            **environment.describe(ROOT),
            "llvm": parse("cpu").device.arch,
            **about,
            "load": round(os.getloadavg()[0], 1),
        },
        "failed": failed,
        "rows": [],
    }
    cases = [(folder, *case) for case, reason in told.items() if not reason]
    if threads:
        records.write(path, record)
    for count in threads:
        rows = measured("benchmarks.qdq.worker", cases, count, at_once, end, SECONDS)
        for (_, name, form), row in rows:
            if "wrong" in row:
                failed[f"{name}, {form}, {count} threads"] = row["wrong"]
            else:
                record["rows"].append({"name": name, "form": form, **row})
                print(record["rows"][-1], flush=True)
            records.write(path, record)
    print(*(f"{case}: {reason}" for case, reason in failed.items()), sep="\n", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
