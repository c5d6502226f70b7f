"""The command line: measure every layer, write ``results`` and ``README.md``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import environment
from benchmarks.harness.client import ROOT, THREAD_VARIABLES
from benchmarks.records import text

from .layers import NETWORKS
from .table import render

HERE = Path(__file__).parent
RECORD = HERE / "results" / "convolutions.json"


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolutions", description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the table again, no more")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--network", choices=NETWORKS, nargs="*", default=list(NETWORKS))
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args()
    record: dict[str, Any] = {"environment": {}, "machine": {}, "layers": {}}
    if args.record.exists():
        record = json.loads(args.record.read_text())
    if not args.render:
        record["environment"] = environment.describe(ROOT)
        for threads in args.threads:
            for network in args.network:
                head, *found = _measure(network, threads)
                record["machine"][f"{threads}/{network}"] = head
                for one in found:
                    record["layers"][f"{threads}/{network}/{one.pop('layer')}"] = one
                args.record.write_text(text(record))
    if args.record == RECORD:
        (HERE / "README.md").write_text(render(record))
    return 0


def _measure(network: str, threads: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.convolutions.measure"]
    command += ["--threads", str(threads), "--network", network]
    settings = dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"TVM_BIND_THREADS": "0"}
    run = subprocess.run(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
