"""Sweep operators in half types: ``python -m benchmarks.half_sweep``."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import records, workers

from .magnitudes import HALVES
from .table import RECORD, bad, load, page

_TORCH_A_PROGRAM = 12


def main() -> int:
    """Sweep, print what is wrong and the page, write the record; returns 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.half_sweep", description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression over names of cases")
    parser.add_argument("--frameworks", default="onnx,torch")
    parser.add_argument("--dtypes", default=",".join(HALVES))
    parser.add_argument("--most", type=int, default=2, help="cases of an operator of ONNX")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600, help="seconds a program")
    parser.add_argument("--render", action="store_true", help="print the page, no more")
    options = parser.parse_args()
    stored = load()
    tasks = [] if options.render else [*_tasks(options)]
    for key, found in _swept(tasks, options.workers, options.limit):
        if found["outcome"] in ("wrong", "crash"):
            print(key, json.dumps(found), flush=True)
        if found["outcome"] != "no case":
            stored[key] = found
            _write(stored)
    print(page())
    return 1 if bad(stored) else 0


def _write(stored: dict[str, dict[str, Any]]) -> None:
    """Write the record, after each case: a sweep may take an hour."""
    kinds: dict[str, dict[str, Any]] = {}
    for key, found in sorted(stored.items()):
        framework, dtype, name = key.split()
        known = {field: value for field, value in found.items() if value}
        told: Any = known if len(known) > 1 else known["outcome"]
        kinds.setdefault(f"{framework} {dtype}", {})[name] = told
    records.write(RECORD, kinds)


def _tasks(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines for workers: cases of ONNX one by one, of PyTorch a dozen a program."""
    for framework in options.frameworks.split(","):
        if framework == "onnx":
            from .onnx_cases import names as onnx_names

            names, size = [*onnx_names(options.most)], 1
        else:
            from .torch_cases import names as torch_names

            names, size = [*torch_names()], _TORCH_A_PROGRAM
        names = [name for name in names if re.search(options.only, name)]
        for dtype in options.dtypes.split(","):
            for i in range(0, len(names), size):
                yield " ".join([framework, dtype, *names[i : i + size]])


def _swept(tasks: list[str], jobs: int, limit: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run tasks in worker processes; one that dies or hangs costs what is left of its task."""

    def serve(left: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        worker = None
        for task in left:
            worker = worker or _started()
            worker.send(task)
            framework, dtype, *names = task.split()
            missing = dict.fromkeys(names)
            while line := worker.line(limit):
                answer = json.loads(line)
                if "end" in answer:
                    break
                name = answer.pop("name")
                missing.pop(name, None)
                yield f"{framework} {dtype} {name}", answer
            else:
                reason = worker.ended() if line == "" else f"longer than {limit:g} s"
                for name in missing:
                    yield f"{framework} {dtype} {name}", {"outcome": "crash", "reason": reason}
                worker.close()
                worker = None
        if worker is not None:
            worker.close()

    yield from workers.gather(tasks, jobs, serve)


def _started() -> workers.Worker:
    threads = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
    worker = workers.Worker("-m", "benchmarks.half_sweep.worker", environment=threads)
    if worker.line(300) != "ready":
        worker.close()
        raise RuntimeError("a worker did not start")
    return worker


if __name__ == "__main__":
    sys.exit(main())
