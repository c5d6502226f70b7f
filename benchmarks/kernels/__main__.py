"""The command line: measure with one thread and with all, write ``results`` and ``README.md``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import environment
from benchmarks.harness.__main__ import write
from benchmarks.harness.client import ROOT
from tvm_fusion.threads import physical_cores

from . import cases

HERE = Path(__file__).parent
RECORD = HERE / "results" / "kernels.json"


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the tables again, no more")
    if not parser.parse_args().render:
        record: dict[str, Any] = {"environment": environment.describe(ROOT), "threads": {}}
        for threads in dict.fromkeys((1, physical_cores())):
            record["threads"][str(threads)] = _measure(threads)
        write(RECORD, record)
    (HERE / "README.md").write_text(render(json.loads(RECORD.read_text())))
    return 0


def _measure(threads: int) -> dict[str, Any]:
    names = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    settings = {**dict.fromkeys(names, str(threads)), "TVM_BIND_THREADS": "0"}
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
        "Generated from `results/kernels.json` by `python -m benchmarks.kernels`; edits are lost.",
        "",
        "Each result is compared with float64 first. Ours and its peer take turns in one process;"
        " medians of the rounds. The peak is that of multiply-adds in registers; reading is BLAS's"
        " dot product, copying numpy's. A constant operand is packed at compile time.",
    ]
    for threads, found in record["threads"].items():
        lines += [
            "",
            f"## {threads} thread{'s' * (threads != '1')}",
            "",
            f"{found['peak']:.0f} GFLOP/s at most, {found['read']:.1f} GB/s read.",
        ]
        for title, key in (
            ("Products", "squares"),
            (f"Products drawn from seed {cases.SEED}", "drawn"),
        ):
            lines += [
                "",
                f"### {title}",
                "",
                "| rows x columns x terms | GFLOP/s | of the peak | times OpenBLAS |",
                "| --- | --- | --- | --- |",
            ]
            for row in found[key]:
                share, ratio = row["ours"] / found["peak"], row["ours"] / row["blas"]
                lines.append(f"| {row['name']} | {row['ours']:.0f} | {share:.0%} | {ratio:.2f} |")
        lines += [
            "",
            "### Memory",
            "",
            "| kernel | GB/s | of the bandwidth |",
            "| --- | --- | --- |",
        ]
        for row in found["vectors"]:
            rate = row["bytes_per_second"]
            lines.append(f"| {row['name']} | {rate:.1f} | {rate / found['read']:.0%} |")
        for row in found["rows"]:
            share = row["ours"] / row["stream"]
            lines.append(f"| {row['name']} | {row['ours']:.1f} | {share:.0%} |")
        lines += [
            "",
            f"### A layer norm before a product of {cases.WIDTH} columns and terms",
            "",
            "| rows | two kernels (us) | one kernel (us) | ratio |",
            "| --- | --- | --- | --- |",
        ]
        for row in found["norms"]:
            ratio = row["together"] / row["apart"]
            times = f"{row['apart']:.1f} | {row['together']:.1f}"
            lines.append(f"| {row['rows']} | {times} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
