"""All figures of matrix units of a CPU in one run of limited length: halves, int8, one GEMM.

``python3 -m benchmarks.cpu_half.whole DIR [--seconds 540] [--threads 16 1 2] [--at-once 4]`` makes
the files of :mod:`.run` and :mod:`benchmarks.qdq.run` side by side on all cores; then, with nothing
else running, :mod:`.gemm` and each row of both are timed, as far as time goes. Models with few
threads are measured some at once, on cores of their own. Records go to $OUT as of each command.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.qdq import run as qdq
from benchmarks.workers import ROOT

from . import gemm
from . import run as halves

PARTS = {"benchmarks.cpu_half.run": 2, "benchmarks.qdq.run": 1}  # of the cores, to prepare
LAST = 0.4  # of the time that is left after the GEMMs, kept for int8


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare, then measure; returns the exit code: 1 if anything is missing."""
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.cpu_half.whole", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="of files and artifacts")
    parser.add_argument("--seconds", type=float, default=540.0, help="of this run")
    parser.add_argument("--threads", type=int, nargs="*", default=[16, 1, 2])
    parser.add_argument("--at-once", type=int, default=4, help="models that are measured at once")
    parser.add_argument("--layers", type=int, default=12, help="of an encoder that is quantized")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    cores = len(os.sched_getaffinity(0))
    places = dict(zip(PARTS, (options.folder / "halves", options.folder / "int8"), strict=True))
    more = {"benchmarks.qdq.run": ["--layers", str(options.layers)]}
    running = []
    for module, place in places.items():
        jobs = max(1, cores * PARTS[module] // sum(PARTS.values()))
        given = ["--prepare", "--jobs", str(jobs), *more.get(module, ())]
        command = [sys.executable, "-m", module, str(place), *given]
        running.append(subprocess.Popen(command, cwd=ROOT))
    codes = [process.wait() for process in running]
    threads = [str(n) for n in options.threads if n <= cores]
    print(f"prepared, {end - time.monotonic():.0f} s left", flush=True)
    codes.append(gemm.main(["--threads", *threads]))
    common = ["--threads", *threads, "--at-once", str(options.at_once), "--seconds"]
    left = end - time.monotonic()
    for part, share in ((halves, 1 - LAST), (qdq, 1.0)):
        module = part.__name__
        seconds = min(left * share, end - time.monotonic())
        found = [str(places[module]), *more.get(module, ()), *common, str(seconds)]
        codes.append(part.main(found))
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
