"""Check and time a folder of models on this machine's GPU, against PyTorch.

``python3 -m benchmarks.gpu_models.run DIR [--json FILE] [--profile]`` needs PyTorch, transformers
and TVM's runtime, no compiler. Every model has a process of its own: all get ready side by side
(weights drawn, results compared with a float64 run, PyTorch's compiler run and captured), then
one after the other is timed while the others wait.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.workers import Worker

from .build import INDEX

MODULE = "benchmarks.gpu_models.worker"
SECONDS = 240.0  # for getting ready; compilers share the processor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; returns the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="default: gpu_models.json in $OUT, if it is set")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of those to run")
    parser.add_argument(
        "--no-rival", nargs="*", help="parts of the names to leave PyTorch's compiler out of"
    )
    parser.add_argument("--profile", action="store_true", help="list the kernels of a call, too")
    options = parser.parse_args(arguments)
    path = options.json or Path(os.environ.get("OUT", "."), "gpu_models.json")
    index = json.loads((options.folder / INDEX).read_text())
    names = [n for n in index["models"] if not options.only or any(p in n for p in options.only)]
    without = options.no_rival
    has_rival = {n: without is None or not any(p in n for p in without or [""]) for n in names}
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    folder, profiled = str(options.folder), str(int(options.profile))
    workers = {
        name: Worker(
            *("-m", MODULE, name, folder, str(int(has_rival[name])), profiled),
            environment=environment,
            folder=Path.cwd(),
        )
        for name in names
    }
    record: dict[str, Any] = {"about": index, "rows": []}
    start = time.perf_counter()
    answers = {name: worker.answer(SECONDS) for name, worker in workers.items()}
    print(f"ready after {time.perf_counter() - start:.0f} s", flush=True)
    for name, worker in workers.items():
        row = answers[name]
        if not row["wrong"]:
            worker.send("go")
            row |= worker.answer(SECONDS)
        worker.close()
        record["about"] |= row.pop("about", {})
        record["rows"].append({**index["models"][name], **row, "name": name})
        print(_text(record["rows"][-1]), flush=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(row["wrong"] for row in record["rows"]))


def _text(row: dict[str, Any]) -> str:
    if row["wrong"]:
        return f"{row['name']:32} WRONG: {row['wrong']}"
    us = "  ".join(f"{name} {value:8.1f}" for name, value in row["us"].items())
    errors = "  ".join(f"{name} {value:.2e}" for name, value in row["errors"].items())
    for side, found in row.get("profile", {}).items():
        us += f"  {side}: {len(found['kernels'])} kernels, busy {found['busy_us']:.1f}"
    return f"{row['name']:32} {us} us  host {row['host_us']:.0f}  errors {errors}"


if __name__ == "__main__":
    sys.exit(main())
