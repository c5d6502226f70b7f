"""All figures of matrix units of a CPU in one run of limited length: halves, int8, one GEMM.

``python3 -m benchmarks.cpu_half.whole DIR [--seconds 540] [--threads 16 1 2] [--at-once 4]`` makes
the files of :mod:`.run` and :mod:`benchmarks.qdq.run` side by side on all cores, for at most half
of the time; what is not made by then is left out. With nothing else running, :mod:`.gemm` and each
row of both are timed, as far as time goes. Models with few threads are measured some at once, on
cores of their own. Records go to $OUT as of each command, each row when it is measured, and tell
what is missing.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.qdq import run as qdq

from . import gemm
from . import run as halves

PREPARING = 0.5  # of the time, at most
LAST = 0.4  # of the time that is left after the GEMMs, kept for int8
LEAVING = 5.0  # seconds, to end processes and write


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare, then measure; returns the exit code: 1 if anything is missing."""
    from .models import MODELS

    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.cpu_half.whole", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="of files and artifacts")
    parser.add_argument("--seconds", type=float, default=540.0, help="of this run")
    parser.add_argument("--threads", type=int, nargs="*", default=[16, 1, 2])
    parser.add_argument("--at-once", type=int, default=4, help="models that are measured at once")
    parser.add_argument("--layers", type=int, default=12, help="of an encoder that is quantized")
    parser.add_argument("--halves", nargs="*", default=[*MODELS], help="models of halves")
    parser.add_argument("--int8", nargs="*", default=qdq.MODELS, help="models that are quantized")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    end = begin + options.seconds - LEAVING
    ready = begin + PREPARING * options.seconds
    cores = len(os.sched_getaffinity(0))
    place, out = options.folder, Path(os.environ.get("OUT", "."))
    with ThreadPoolExecutor(cores) as pool:
        files = qdq.make(options.int8, options.layers, place / "int8", pool, ready)
        made = halves.prepare(options.halves, place / "halves", pool, ready)
        quantized = qdq.prepare(files, place / "int8", pool, ready)
    print(f"prepared in {time.monotonic() - begin:.0f} s", flush=True)
    threads = [n for n in options.threads if n <= cores]
    codes = [gemm.measure([gemm.SIZE], threads, out / "gemm.json", end)]
    middle = end - LAST * (end - time.monotonic())
    at_once = options.at_once
    codes.append(
        halves.measure(made, place / "halves", out / "cpu_half.json", threads, at_once, middle)
    )
    about = {"layers": options.layers}
    codes.append(
        qdq.measure(quantized, about, place / "int8", out / "qdq.json", threads, at_once, end)
    )
    print(f"took {time.monotonic() - begin:.0f} s", flush=True)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
