"""Sweep PyTorch's operator samples: ``python -m benchmarks.operators_torch``."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys

from .samples import DTYPES, cases
from .sweep import sweep


def main() -> None:
    """Sweep, print a line for each case, write the record and its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression over operators")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--most", type=int, default=4, help="samples of an operator in a dtype")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60, help="seconds a sample")
    parser.add_argument("--log", help="append outcomes to this file, and leave out what it holds")
    options = parser.parse_args()
    wanted = [
        (name, dtype)
        for name, dtype in cases()
        if dtype in options.dtypes.split(",") and re.search(options.only, name)
    ]
    done = _cases_in(options.log)
    wanted = [case for case in wanted if case not in done]
    wanted.sort(key=lambda case: list(DTYPES).index(case[1]))
    for result in sweep(wanted, options.most, options.workers, options.limit):
        line = json.dumps(vars(result))
        if options.log:
            with open(options.log, "a") as log:
                log.write(line + "\n")
        else:
            print(line, flush=True)


def _cases_in(log: str | None) -> set[tuple[str, str]]:
    if log is None or not os.path.exists(log):
        return set()
    with open(log) as lines:
        return {(r["name"], r["dtype"]) for r in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
