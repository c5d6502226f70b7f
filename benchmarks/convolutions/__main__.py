"""The command line: measure every layer, write ``results`` and ``README.md``."""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.records import read, write

from .child import rows_of
from .layers import NETWORKS
from .table import render

HERE = Path(__file__).parent
RECORD = HERE / "results" / "convolutions.json.xz"
MEASURE = "benchmarks.convolutions.measure"


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
        record = read(args.record)
    if not args.render:
        record["environment"] = environment.describe(ROOT)
        for threads in args.threads:
            for network in args.network:
                arguments = "--threads", str(threads), "--network", network
                head, *found = rows_of(MEASURE, *arguments, threads=threads)
                record["machine"][f"{threads}/{network}"] = head
                for one in found:
                    record["layers"][f"{threads}/{network}/{one.pop('layer')}"] = one
                write(args.record, record)
    if args.record == RECORD:
        (HERE / "README.md").write_text(render(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
