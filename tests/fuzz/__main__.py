"""Long runs: ``python -m tests.fuzz --graphs 1000 --seed 0 --jobs 2 --json report.json``."""

import argparse
import json
import sys
from pathlib import Path

from .session import run, serve


def main() -> int:
    """Check graphs of consecutive seeds; returns 1 if any of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--graphs", type=int, default=100, help="how many (default 100)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the first seed (default 0); from 1000000 on graphs also draw bfloat16, integers and "
        "booleans, zero extents, and NaN or infinite inputs",
    )
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default 1)")
    parser.add_argument("--no-shrink", action="store_true", help="leave failing graphs as they are")
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(arguments.worker[0], arguments.worker[1] == "1")
        return 0
    report = run(
        range(arguments.seed, arguments.seed + arguments.graphs),
        target=arguments.target,
        jobs=arguments.jobs,
        shrinking=not arguments.no_shrink,
        log=lambda text: print(text, flush=True),
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    print(report.coverage.table())
    shares = {
        "values with several consumers": report.shared / max(1, report.values),
        "symbolic graphs": report.symbolic / report.graphs,
        "graphs with half types": report.half / report.graphs,
    }
    print(f"{report.graphs} graphs, {report.nodes} nodes, {len(report.failures)} failures;")
    print("; ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items()))
    print("graphs that draw more:", dict(report.draws))
    print("decisions:", report.coverage.as_json()["decisions"])
    print("seconds by phase:", report.seconds)
    return int(bool(report.failures))


if __name__ == "__main__":
    sys.exit(main())
