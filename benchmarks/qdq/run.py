"""Quantize and compile the models, then check and time each with some numbers of threads.

``python -m benchmarks.qdq.run DIR [--only NAME ...] [--threads 1 2 16] [--layers 12]`` needs
PyTorch, transformers, ONNX Runtime and, for the peer, OpenVINO; the record goes to ``qdq.json`` in
$OUT. A model that is in the folder is not made again; ``--prepare`` makes and compiles alone.
``--at-once 4`` measures four files side by side, on cores of their own.
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.harness import environment
from benchmarks.records import text
from benchmarks.workers import ROOT, Worker, gather
from tvm_fusion.device import parse

from .files import FORMS, MODELS

THREADS = (1, 2, 16)
SECONDS = 120.0  # for one row


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
    path = options.json or Path(os.environ.get("OUT", "."), "qdq.json")
    folders = [options.folder / name for name in options.only]
    layers = [options.layers] * len(folders)
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        found = [*pool.map(_prepare, options.only, layers, folders)]
    failed = dict(line for one in found for line in one)
    if options.prepare:
        print("\n".join(f"{case}: {reason}" for case, reason in failed.items()))
        return int(bool(failed))
    about = {
        **environment.describe(ROOT),
        "llvm": parse("cpu").device.arch,
        "layers": options.layers,
        "load": round(os.getloadavg()[0], 1),
    }
    record: dict[str, Any] = {"about": about, "failed": failed, "rows": []}
    cases = [(name, form) for name in options.only for form in FORMS]
    cases = [case for case in cases if ", ".join(case) not in failed]
    for threads in options.threads:
        cores = itertools.count(0, threads)

        def serve(
            left: Iterator[tuple[str, str]], threads: int = threads, cores: Iterator[int] = cores
        ) -> Iterator[tuple[str, str, dict[str, Any] | str]]:
            first = next(cores)
            for name, form in left:
                if time.monotonic() < end:
                    yield name, form, _row(options.folder / name, form, threads, first)

        at_once = max(1, min(options.at_once, len(os.sched_getaffinity(0)) // threads))
        for name, form, row in gather(cases, at_once, serve):
            if isinstance(row, str):
                failed[f"{name}, {form}, {threads} threads"] = row
            else:
                record["rows"].append({"name": name, "form": form, **row})
                print(record["rows"][-1], flush=True)
            path.write_text(text(record))
    print("\n".join(f"{case}: {reason}" for case, reason in failed.items()))
    return int(bool(failed))


def _row(folder: Path, form: str, threads: int, first: int) -> dict[str, Any] | str:
    """Measure a file on some cores, from the first one; returns what failed as text."""
    arguments = str(folder), form, str(threads), str(first)
    worker = Worker("-m", "benchmarks.qdq.worker", *arguments, environment={})
    line = worker.line(SECONDS)
    if not line:
        ended = worker.ended() if line == "" else f"over {SECONDS:.0f} s"
        worker.close()
        return ended
    worker.close()
    return json.loads(line)


def _prepare(name: str, layers: int, folder: Path) -> list[tuple[str, str]]:
    """Make a model's files and compile them; returns what failed, by case."""
    import tvm_fusion

    from .files import make

    try:
        if not (folder / "inputs.npz").exists():
            make(name, layers, folder)
    # guard: a model that is not made is a line of the page
    except Exception as error:
        return [(f"{name}, {form}", str(error)) for form in FORMS]
    failed = []
    for form in FORMS:
        try:
            if not (folder / form).exists():
                tvm_fusion.compile(folder / f"{form}.onnx", target="cpu").export(folder / form)
        # guard: the same
        except Exception as error:
            failed.append((f"{name}, {form}", str(error)))
    return failed


if __name__ == "__main__":
    sys.exit(main())
