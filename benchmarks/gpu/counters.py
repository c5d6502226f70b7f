"""Hardware counters of works' kernels by Nsight Compute: what bounds those that fall short.

``python3 -m benchmarks.gpu.counters DIR NAME ... [--json FILE]`` needs ncu, numpy and TVM's
runtime. Each work runs once with caches flushed, clocks as they are.
"""

import argparse
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.markdown import table

_PART = ".avg.pct_of_peak_sustained_elapsed"
METRICS = {
    "us": "gpu__time_duration.sum",
    "dram": "gpu__dram_throughput" + _PART,
    "l2": "lts__throughput" + _PART,
    "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared" + _PART,
    "tensor": "sm__pipe_tensor_cycles_active" + _PART,
    "issue": "sm__inst_issued" + _PART,
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "busy": "sm__cycles_active.avg",
    "elapsed": "sm__cycles_elapsed.max",
    "blocks": "launch__grid_size",
    "threads": "launch__block_size",
    "registers": "launch__registers_per_thread",
    "dram_bytes": "dram__bytes.sum",
}
SECONDS = 60.0
HIGH = 60.0  # percent of a unit's peak from which it bounds a kernel
LATENCY = "latency: no unit is at its peak"
IDLE = "multiprocessors without blocks"


def main() -> int:
    """Count all; returns the exit code: 1 if any work has no counters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", help="of works")
    parser.add_argument("--json", type=Path, help="default: counters.json in $OUT, if it is set")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    path = options.json or Path(os.environ.get("OUT", "."), "counters.json")
    record: dict[str, Any] = {}
    with ThreadPoolExecutor(options.processes) as pool:
        jobs = {name: pool.submit(counted, options.folder, name) for name in options.names}
        for name, job in jobs.items():
            record[name] = job.result()
            print(name, json.dumps(record[name]), flush=True)
            path.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(isinstance(kernels, str) for kernels in record.values()))


def counted(folder: Path, name: str) -> list[dict[str, Any]] | str:
    """Return the counters of a workload's kernels, or why there are none."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--metrics", ",".join(METRICS.values())]
    command += [sys.executable, "-m", "benchmarks.gpu.once", str(folder), name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"more than {SECONDS:.0f} s"
    kernels = parsed(done.stdout)
    return kernels or (done.stdout + done.stderr).strip()[-300:]


def parsed(output: str) -> list[dict[str, Any]]:
    """Read what ncu writes: a line of names, one of units, and one for each kernel."""
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))[1:]
    found = []
    for row in rows:
        kernel: dict[str, Any] = {"kernel": row["Kernel Name"][:80]}
        for name, metric in METRICS.items():
            value = (row.get(metric) or "").replace(",", "")
            kernel[name] = float(value) if value else None
        kernel["us"] = kernel["us"] and round(kernel["us"] / 1e3, 2)
        found.append(kernel)
    return found


def bound_by(kernel: Mapping[str, Any]) -> str:
    """Name the unit that is nearest its peak, or what keeps all of them from it."""
    units = {"memory": "dram", "L2": "l2", "shared memory": "shared", "tensor cores": "tensor"}
    units["issue slots"] = "issue"
    parts = {unit: kernel[name] or 0.0 for unit, name in units.items()}
    unit = max(parts, key=parts.__getitem__)
    if parts[unit] >= HIGH:
        return unit
    if kernel["busy"] and kernel["elapsed"] and kernel["busy"] < kernel["elapsed"] * HIGH / 100:
        return IDLE
    return LATENCY


def page(counted: Mapping[str, Any]) -> list[str]:
    """Render the counters as a section of the page."""
    if not counted:
        return []
    cells = []
    for name, kernels in counted.items():
        for kernel in [] if isinstance(kernels, str) else kernels:
            parts = [_percent(kernel[k]) for k in ("dram", "l2", "shared", "tensor", "issue")]
            idle = 100 * (1 - kernel["busy"] / kernel["elapsed"]) if kernel["elapsed"] else None
            shape = [f"{kernel['blocks']:.0f}", f"{kernel['threads']:.0f}"]
            shape += [f"{kernel['registers']:.0f}", _percent(kernel["warps"]), _percent(idle)]
            cells.append([name, f"{kernel['us']:.2f}", *parts, *shape, bound_by(kernel)])
    return [
        "",
        "## What bounds rows that fall short",
        "",
        "Nsight Compute's counters of one call, caches flushed, clocks not held: each unit in"
        " percent of its peak over the kernel's time, warps of those that a multiprocessor holds,"
        f" and the time that multiprocessors have no block. A unit at {HIGH:.0f} % or more bounds"
        " the kernel.",
        "",
        *table(
            [
                *("workload", "us", "memory", "L2", "shared", "tensor cores", "issue", "blocks"),
                *("threads", "registers", "warps", "idle", "bound by"),
            ],
            cells,
        ),
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


if __name__ == "__main__":
    sys.exit(main())
