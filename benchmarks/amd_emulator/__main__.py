"""The command line: run all cases, write ``results/amd_emulator.json.xz``, print the page."""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks import records

from .case import DTYPES, FORMS
from .cases import CASES
from .run import ARCHS, key_of, keys, run
from .table import RECORD, load, page


def main() -> int:
    """Run and render; returns 1 if a result is wrong or missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.amd_emulator", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    for name, known in (("arch", ARCHS), ("dtype", DTYPES), ("form", FORMS)):
        parser.add_argument(f"--{name}", choices=known, help="one of them alone")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0, help="of --sample")
    parser.add_argument("--reverse", action="store_true", help="waves from the last to the first")
    parser.add_argument("--out", type=Path, help="another file")
    parser.add_argument("--render", action="store_true", help="print the page, no more")
    options = parser.parse_args()
    path = options.out or RECORD
    if options.render:
        print(page())
        return 0
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    chosen = keys(
        options.cases or CASES,
        [options.arch] if options.arch else ARCHS,
        [options.dtype] if options.dtype else DTYPES,
        [options.form] if options.form else FORMS,
    )
    if options.sample is not None:
        draw = random.Random(options.seed)
        chosen = draw.sample(chosen, min(options.sample, len(chosen)))
    runs: list[dict[str, Any]] = []
    for one in run(chosen, options.reverse):
        print(one, file=sys.stderr, flush=True)
        runs.append(one)
    is_right = all(one.get("right") for one in runs)
    if options.out is None:
        runs = _joined(runs, load()["runs"] if path.exists() else [])
    order = "reverse" if options.reverse else "forward"
    records.write(path, {"order": order, "runs": records.columns(runs)})
    if options.out is None:
        print(page())
    return 0 if is_right else 1


def _joined(runs: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace runs of a record by newer ones; what is no case any more goes."""
    found = {key_of(one): one for one in (*before, *runs)}
    return [found[key] for key in keys() if key in found]


if __name__ == "__main__":
    sys.exit(main())
