"""The command line: run all cases, write ``results/amd_emulator.json.xz`` and ``README.md``."""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import records

from .cases import CASES
from .run import ARCHS, DTYPES, run
from .table import render

HERE = Path(__file__).parent
RECORD = HERE / "results" / "amd_emulator.json.xz"


def load(path: Path = RECORD) -> dict[str, Any]:
    """Return the order and the runs of a record."""
    record = records.read(path)
    return {**record, "runs": records.rows_of(record["runs"])}


def main() -> int:
    """Run and render; returns 1 if a result is wrong or missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.amd_emulator", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--arch", choices=ARCHS, help="one of them alone")
    parser.add_argument("--dtype", choices=DTYPES, help="one of them alone")
    parser.add_argument("--reverse", action="store_true", help="waves from the last to the first")
    parser.add_argument("--out", type=Path, help="another file; the page stays as it is")
    parser.add_argument("--render", action="store_true", help="write the page again, no more")
    options = parser.parse_args()
    path = options.out or RECORD
    if options.render:
        (HERE / "README.md").write_text(render(load()))
        return 0
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    runs: list[dict[str, Any]] = []
    for one in run(
        options.cases or CASES,
        [options.arch] if options.arch else ARCHS,
        [options.dtype] if options.dtype else DTYPES,
        options.reverse,
    ):
        print(one, file=sys.stderr, flush=True)
        runs.append(one)
    order = "reverse" if options.reverse else "forward"
    records.write(path, {"order": order, "runs": records.columns(runs)})
    if options.out is None:
        (HERE / "README.md").write_text(render(load()))
    return 0 if all(one.get("right") for one in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
