"""One GEMM on tile registers (AMX), beside what they multiply at most in the same run.

``python -m benchmarks.cpu_half.gemm [--sizes 1024] [--threads 1 2 16] [--json FILE]`` compiles
GEMMs of bfloat16 and int8 with a constant B, of a known and of any number of rows, and times them
and products of registers alone in turns; beside them PyTorch's of bfloat16, which is oneDNN's,
where PyTorch is installed. Registers hold numbers as the GEMMs do: zeros take less power, and a
core's clock is up to 1.15 times as fast. Shares are of one core's peak, times the threads.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.rows import answered

MODULE = "benchmarks.cpu_half.gemm_worker"
SIZE = 1024
SECONDS = 60.0  # for one number of threads


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each number of threads in a process of its own; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_half.gemm", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[SIZE], help="M = N = K")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 16])
    parser.add_argument("--json", type=Path, help="default: gemm.json in $OUT, if it is set")
    options = parser.parse_args(arguments)
    path = options.json or Path(os.environ.get("OUT", "."), "gemm.json")
    return measure(options.sizes, options.threads, path, float("inf"))


def measure(sizes: Sequence[int], threads: Sequence[int], path: Path, end: float) -> int:
    """Write the rows of each number of threads when they are measured; returns the exit code."""
    record: dict[str, Any] = {"failed": [], "rows": []}
    for count in threads:
        found = answered(MODULE, count, *sizes, end=end, seconds=SECONDS)
        if "wrong" in found:
            record["failed"].append(f"{count} threads: {found['wrong']}")
            print(record["failed"][-1], flush=True)
        for row in found.get("rows", ()):
            record["rows"].append(row)
            print(
                f"{row['type']} {row['size']} rows {row['rows']:8} {row['threads']:2} threads"
                f" {row['ms']:8.3f} ms {row['tops']:6.2f} T/s {100 * row['share']:5.1f} % of peak",
                flush=True,
            )
        records.write(path, record)
    return int(bool(record["failed"]))


if __name__ == "__main__":
    sys.exit(main())
