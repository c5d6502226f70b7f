"""The command line: fetch trained files, measure them, write ``results`` and ``README.md``."""

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import records

from .files import FILES, File, fetch
from .page import page

HERE = Path(__file__).parent
RECORD = HERE / "results" / "real_models.json.xz"
CACHE = Path.home() / ".cache" / "tvm_fusion" / "real_models"


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_models", description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the page again, no more")
    parser.add_argument("--only", metavar="TEXT", help="files whose names have it; others stay")
    parser.add_argument("--folder", type=Path, default=CACHE, help="where files lie, or are put")
    parser.add_argument("--fetch", action="store_true", help="download all files, no more")
    parser.add_argument("--cells", nargs="*", default=["cpu", "sm_90a"], help="compiled for them")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 8], help="of timed runs")
    parser.add_argument("--gpu-times", action="store_true", help="time what runs on the GPU here")
    parser.add_argument("--jobs", type=int, default=1, help="files compiled side by side")
    parser.add_argument("--limit", type=float, default=600, help="seconds a cell")
    parser.add_argument("--artifacts", type=Path, help="they stay here; those of a run before")
    parser.add_argument("--record", type=Path, default=RECORD, help="file of results")
    options = parser.parse_args()
    if not options.render:
        chosen = [f for f in FILES if options.only is None or options.only in f.name]
        places = {file.name: fetch(file, options.folder) for file in chosen}
        if options.fetch:
            print(*places.values(), sep="\n")
            return 0
        with ExitStack() as stack:
            kept = options.artifacts or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _measured(options, chosen, places, kept)
    if options.record == RECORD:
        (HERE / "README.md").write_text(page(json.loads(RECORD.read_text())))
    return 0


def _measured(
    options: argparse.Namespace, chosen: list[File], places: Mapping[str, Path], kept: Path
) -> None:
    """Compile and compare side by side, then time; the record is written as it goes."""
    from benchmarks.cores import core_sets
    from benchmarks.robustness.sweep import rows_of

    from .measure import work
    from .times import timed, times

    context = multiprocessing.get_context("spawn")  # a fork has no driver of CUDA
    one = partial(work, places, kept)
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = {
            pool.submit(rows_of, context, one, file.name, options.cells, options.limit): file
            for file in (chosen if options.cells else [])
        }
        for task in as_completed(tasks):
            cells = {name: cell for name, cell in task.result().items() if name != "export"}
            print(tasks[task].name, json.dumps(cells), flush=True)
            keep(options.record, tasks[task], cells)
    is_right = {
        row["name"]: [c for c in ("cpu", "sm_90a") if row.get(c, {}).get("outcome") == "right"]
        for row in records.read(options.record)["files"]
    }
    for count in options.threads:
        right = [file for file in chosen if "cpu" in is_right[file.name]]
        for file, found in times(right, places, kept, count):
            print(file.name, count, found, flush=True)
            keep(options.record, file, {f"threads_{count}": found})
    for file in chosen if options.gpu_times else []:
        if "sm_90a" in is_right[file.name]:
            folder = kept / "sm_90a" / file.name
            found = timed(folder, core_sets(1)[0], "--times")
            print(file.name, "GPU", found, flush=True)
            keep(options.record, file, {"gpu_times": found})


def keep(record: Path, file: File, cells: Mapping[str, Any]) -> None:
    """Put cells into a file's row of the record in place of those that it had."""
    from benchmarks.harness import environment
    from benchmarks.harness.client import ROOT

    from .measure import about

    rows = records.read(record)["files"] if record.exists() else []
    found = {row["name"]: row for row in rows}
    found[file.name] = {**found.get(file.name, {}), **about(file), **cells}
    order = {file.name: i for i, file in enumerate(FILES)}
    rows = sorted(found.values(), key=lambda row: order.get(row["name"], len(order)))
    records.write(record, {"environment": environment.describe(ROOT), "files": rows})


if __name__ == "__main__":
    raise SystemExit(main())
