"""Count which special cases the plans of the zoo's models make use of, and print the page.

Run as ``python -m benchmarks.owners [--target TARGET] [--precision fp16] [MODEL ...]``; without
models the page is that of the record. ``--suite`` counts the laws of the expressions with
a known optimum (`tests/rewrite/suite`). Nothing is built and nothing is measured.
"""

import argparse
import sys

from benchmarks import zoo
from benchmarks.records import write

from .cases import TARGETS
from .counting import counted, counted_suite
from .table import RESULT, SUITE, page, stored


def main() -> int:
    """Plan models, keep the counts, print the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.owners", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of the zoo")
    parser.add_argument("--target", action="append", help=f"default: {' and '.join(TARGETS)}")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--suite", action="store_true", help="count the expressions' laws")
    options = parser.parse_args()
    for name in options.models:
        for target in options.target or TARGETS:
            run = f"{name} {options.precision} {target}"
            _keep(run, counted(zoo.load(name), target, options.precision))
    if options.suite:
        _keep(SUITE, counted_suite())
    print(page())
    return 0


def _keep(run: str, counts: dict[str, dict[str, int]]) -> None:
    """Add a run to what other processes may have written in between."""
    record = dict(sorted({**stored(), run: counts}.items()))
    write(RESULT, record)
    print(run, "planned", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
