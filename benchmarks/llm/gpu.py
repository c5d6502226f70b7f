"""Time steps of language models on this machine's GPU: ``python3 -m benchmarks.llm.gpu``.

It needs the compiler, PyTorch and transformers. Every step has a process of its own: all compile
side by side and compare logits and caches with PyTorch's in float32, then one after the other is
timed while the others wait; what is not ready in time is told. The record is written row by row.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.workers import Worker

from .steps import STEPS

MODULE = "benchmarks.llm.step_worker"
READY, TIMED = 140.0, 20.0  # seconds for all to get ready, and for each to be timed


def main() -> int:
    """Run all; returns the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.llm.gpu", description=__doc__)
    parser.add_argument("--json", type=Path, help="default: llm_gpu.json in $OUT, if it is set")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of steps")
    parser.add_argument("--alone", nargs="*", default=[], help="those without PyTorch's compiler")
    parser.add_argument("--ready", type=float, default=READY, help="seconds to get ready")
    parser.add_argument("--seconds", type=float, default=1e9, help="seconds for everything")
    options = parser.parse_args()
    path = options.json or Path(os.environ.get("OUT", "."), "llm_gpu.json")
    names = [s.name for s in STEPS if not options.only or any(p in s.name for p in options.only)]
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "2"}

    def alone(name: str) -> list[str]:
        return ["alone"] if any(part in name for part in options.alone) else []

    workers = {
        name: Worker("-m", MODULE, name, *alone(name), environment=environment, folder=Path.cwd())
        for name in names
    }
    start = time.perf_counter()
    rows: dict[str, dict[str, Any]] = {}

    def keep(name: str, row: dict[str, Any]) -> None:
        rows[name] = {**rows.get(name, {}), "name": name, **row}
        path.write_text(json.dumps({"rows": [*rows.values()]}, indent=1) + "\n")
        print(f"{time.perf_counter() - start:5.0f} s {_text(rows[name])}", flush=True)

    for name, worker in workers.items():
        keep(name, worker.answer(max(0.1, options.ready - (time.perf_counter() - start))))
    for name, worker in workers.items():
        left = options.seconds - (time.perf_counter() - start)
        if "kernels" in rows[name] and left > 0:
            worker.send("go")
            found = worker.answer(min(TIMED, left))
            keep(name, found if "us" in found else {"untimed": found["wrong"]})
        worker.close()
    return int(any(row["wrong"] for row in rows.values()))


def _text(row: dict[str, Any]) -> str:
    text = f"{row['name']:32}"
    if "kernels" in row:
        text += f" {row['kernels']} kernels, {row['compile_s']:.0f} s"
        text += f", errors {max(row['error'].values()):.1e} {max(row['of_eager'].values()):.1e}"
        text += f" {row.get('refused', '')}"
    if row["wrong"]:
        text += f" WRONG: {row['wrong']}"
    if "us" in row:
        text += "".join(f"  {n} {t:.1f}" for n, t in row["us"].items() if n != "copy")
        text += f" us  {100 * row['of_copy']:.1f} % of a copy"
    return text


if __name__ == "__main__":
    sys.exit(main())
