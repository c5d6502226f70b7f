"""Sweep graphs of a checkout of GraphNet: ``GRAPHNET=checkout python -m benchmarks.graphnet``."""

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.robustness.sweep import rows_of

from .table import GOOD, page

HERE = Path(__file__).parent
RECORD = HERE / "results" / "graphnet.json.xz"
CELLS = ("cpu", "sm_90a")


def main() -> int:
    """Sweep, write the record and its page; returns 1 if a graph is wrong or ends its process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graphnet", description=__doc__)
    parser.add_argument("--count", type=int, default=160, help="graphs to draw")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--most", type=int, default=150_000_000, help="elements of a graph")
    parser.add_argument("--only", nargs="*", help="names instead of a draw")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--jobs", type=int, default=1, help="graphs side by side")
    parser.add_argument("--limit", type=float, default=600, help="seconds a cell")
    parser.add_argument("--missing", action="store_true", help="leave out what is known")
    parser.add_argument("--record", type=Path, default=RECORD, help="file of results")
    parser.add_argument("--render", action="store_true", help="write the page again, no more")
    options = parser.parse_args()
    if not options.render:
        _sweep(options)
    record = records.read(options.record)
    if options.record == RECORD:
        (HERE / "README.md").write_text(page(record))
    rows = [row for graph in record["graphs"].values() for row in graph.values()]
    return 1 if any(row["outcome"] in ("wrong", "crash", "hang") for row in rows) else 0


def _sweep(options: argparse.Namespace) -> None:
    """Run what is asked for, several graphs side by side; the record is written as it goes."""
    from benchmarks.harness.environment import describe

    from .draw import VARIABLE, drawn
    from .worker import work

    os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS")})
    names = options.only or drawn(
        Path(os.environ[VARIABLE]), options.count, options.seed, options.most
    )
    about = {**describe(HERE), "seed": options.seed, "most": options.most}
    known = records.read(options.record)["graphs"] if options.record.exists() else {}
    found: dict[str, Any] = {name: known[name] for name in names if name in known}
    todo = [name for name in names if not (options.missing and name in found)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.graphnet.worker"])
    cells = options.cells.split(",")
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = {pool.submit(rows_of, context, work, n, cells, options.limit): n for n in todo}
        for task in as_completed(tasks):
            name, rows = tasks[task], task.result()
            found[name] = {**found.get(name, {}), **rows}
            for cell, row in rows.items():
                if row["outcome"] not in GOOD:
                    print(name, cell, json.dumps(row), flush=True)
            ordered = {one: found[one] for one in names if one in found}
            records.write(options.record, {"about": about, "graphs": ordered})


if __name__ == "__main__":
    sys.exit(main())
