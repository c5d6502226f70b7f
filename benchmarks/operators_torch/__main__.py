"""Sweep PyTorch's operator samples: ``python -m benchmarks.operators_torch``."""

import argparse
import json
import os
import re
import sys
from pathlib import Path

from benchmarks import records

from . import core
from .samples import DTYPES, cases
from .sweep import CaseResult, sweep
from .table import BAD, defects, merged, page, record_of

HERE = Path(__file__).parent
RECORD = HERE / "results" / "operators_torch.json.xz"


def main() -> int:
    """Sweep, print what is wrong, write the record and its page; returns 1 if anything is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operators_torch", description=__doc__
    )
    parser.add_argument("--only", default="", help="a regular expression over operators")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--most", type=int, default=2, help="samples of an operator in a dtype")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=240, help="seconds a sample")
    parser.add_argument("--log", help="append outcomes to this file, and leave out what it holds")
    parser.add_argument("--render", action="store_true", help="write the page again, no more")
    options = parser.parse_args()
    wanted = [
        (name, dtype)
        for name, dtype in ([] if options.render else cases())
        if dtype in options.dtypes.split(",") and re.search(options.only, name)
    ]
    done = _results_in(options.log)
    known = {(result.name, result.dtype) for result in done}
    wanted = [case for case in wanted if case not in known]
    wanted.sort(key=lambda case: list(DTYPES).index(case[1]))
    for result in sweep(wanted, options.most, options.workers, options.limit):
        done.append(result)
        if options.log:
            with open(options.log, "a") as log:
                log.write(json.dumps(vars(result)) + "\n")
        for outcome in result.outcomes:
            if outcome["outcome"] in BAD:
                print(result.name, result.dtype, json.dumps(outcome), flush=True)
    stored = (
        records.read(RECORD)
        if RECORD.exists()
        else {"command": "", "cases": [0, 0], "operators": {}}
    )
    if done:
        command = " ".join(["python -m benchmarks.operators_torch", f"--most {options.most}"])
        operators = merged(stored["operators"], record_of(done))
        swept, all_of = sum(bool(t) for ts in operators.values() for t in ts), len(list(cases()))
        stored = {"command": command, "cases": [swept, all_of], "operators": operators}
    stored["core"] = core.summary()
    records.write(RECORD, stored)
    (HERE / "README.md").write_text(page(stored))
    return 1 if defects(stored["operators"]) else 0


def _results_in(log: str | None) -> list[CaseResult]:
    if log is None or not os.path.exists(log):
        return []
    with open(log) as lines:
        return [CaseResult(**json.loads(line)) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
