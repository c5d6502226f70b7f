"""The command line: measure with one thread and with all, write ``results`` and ``README.md``."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.markdown import table
from benchmarks.records import read, write
from tvm_fusion.threads import physical_cores

from . import cases

HERE = Path(__file__).parent
RECORD = HERE / "results" / "kernels.json.xz"


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the tables again, no more")
    if not parser.parse_args().render:
        record: dict[str, Any] = {"environment": environment.describe(ROOT), "threads": {}}
        for threads in dict.fromkeys((1, physical_cores())):
            record["threads"][str(threads)] = _measure(threads)
        write(RECORD, record)
    (HERE / "README.md").write_text(render(read(RECORD)))
    return 0


def _measure(threads: int) -> dict[str, Any]:
    names = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    settings = {**dict.fromkeys(names, str(threads)), "TVM_BIND_THREADS": "0"}
    settings["OPENBLAS_THREAD_TIMEOUT"] = "4"  # its threads sleep while ours have their turn
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels.measure", str(threads)],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout.splitlines()[-1])


def render(record: dict[str, Any]) -> str:
    """Write the tables of a record."""
    lines = [
        "# Kernels on a CPU",
        "",
        "Generated from `results/kernels.json.xz` by `python -m benchmarks.kernels`; edits are"
        " lost.",
        "",
        "Each result is compared with float64 first. Ours and the baseline take turns in one"
        " process; medians of the rounds. The peak is that of multiply-adds in registers; reading"
        " is BLAS's dot product, copying numpy's. A constant operand is packed at compile time.",
    ]
    for threads, found in record["threads"].items():
        lines += [
            "",
            f"## {threads} thread{'s' * (threads != '1')}",
            "",
            f"{found['peak']:.0f} GFLOP/s at most, {found['read']:.1f} GB/s read.",
        ]
        for title, key in (
            ("GEMMs", "squares"),
            (f"Random GEMMs, seed {cases.SEED}", "drawn"),
        ):
            headings = ["M x N x K", "GFLOP/s", "of the peak", "times OpenBLAS"]
            lines += ["", f"### {title}", ""]
            lines += table(headings, (_product(row, found["peak"]) for row in found[key]))
        lines += ["", "### Memory", ""]
        lines += table(["kernel", "GB/s", "of the bandwidth"], _memory(found))
        title = f"A layer norm before a product of {cases.WIDTH} columns and terms"
        lines += ["", f"### {title}", ""]
        headings = ["rows", "two kernels (us)", "one kernel (us)", "ratio"]
        lines += table(headings, map(_norm, found["norms"]))
    return "\n".join(lines) + "\n"


def _product(row: dict[str, Any], peak: float) -> list[str]:
    ratio = row["ours"] / row["blas"]
    return [row["name"], f"{row['ours']:.0f}", f"{row['ours'] / peak:.0%}", f"{ratio:.2f}"]


def _memory(found: dict[str, Any]) -> Iterator[list[str]]:
    rates = [(row["name"], row["bytes_per_second"], found["read"]) for row in found["vectors"]]
    rates += [(row["name"], row["ours"], row["stream"]) for row in found["rows"]]
    for name, rate, most in rates:
        yield [name, f"{rate:.1f}", f"{rate / most:.0%}"]


def _norm(row: dict[str, Any]) -> list[str]:
    apart, together = row["apart"], row["together"]
    return [str(row["rows"]), f"{apart:.1f}", f"{together:.1f}", f"{together / apart:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
