"""The command line: measure what has not been measured yet, write ``results`` and ``README.md``."""

import argparse
import json
import os
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.records import read, write

from .case import SIZES
from .catalog import catalog
from .table import render

HERE = Path(__file__).parent
RECORD = HERE / "results" / "operators.json.xz"
TIMES = ("ours_us", "theirs_us")
SECONDS = 90  # that one case may take
BATCH = 40  # cases of one process


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operators_speed", description=__doc__
    )
    parser.add_argument("--render", action="store_true", help="write the table again, no more")
    parser.add_argument("--again", action="store_true", help="measure what is there, too")
    parser.add_argument(
        "--above", type=float, help="measure again what takes so many times as long"
    )
    parser.add_argument("--only", default="", help="cases whose size/name contains this")
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args()
    record: dict[str, Any] = {"environment": {}, "cases": {}}
    if args.record.exists():
        record = load(args.record)
    if not args.render:
        record["environment"] = environment.describe(ROOT)
        keys = [f"{size}/{case.name}" for size in SIZES for case in catalog(size)]
        done = {k: v for k, v in record["cases"].items() if k in keys}
        wanted = [k for k in keys if args.only in k and (args.again or k not in done)]
        if args.above:
            wanted = [k for k in keys if args.only in k and _ratio(done.get(k, {})) > args.above]
        record["cases"] = done
        while wanted:
            for key, found in _measure(wanted[:BATCH]).items():
                record["cases"][key] = _quicker(done.get(key, {}), found) if args.above else found
                wanted.remove(key)
            record["cases"] = {k: record["cases"][k] for k in keys if k in record["cases"]}
            store(args.record, record)
    if args.record == RECORD:
        (HERE / "README.md").write_text(render(record))
    return 0


def load(path: Path) -> dict[str, Any]:
    """Read a record, whose times are pairs."""
    record = read(path)
    named = {
        key: dict(zip(TIMES, case, strict=True)) if isinstance(case, list) else case
        for key, case in record["cases"].items()
    }
    return {**record, "cases": named}


def store(path: Path, record: dict[str, Any]) -> None:
    """Write a record."""
    cases = {
        key: [case[name] for name in TIMES] if TIMES[0] in case else case
        for key, case in record["cases"].items()
    }
    write(path, {**record, "cases": cases})


def _quicker(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Of two measurements take the least of each."""
    if "ours_us" not in one or "ours_us" not in other:
        return other
    return {key: min(one[key], other[key]) for key in TIMES}


def _ratio(found: dict[str, Any]) -> float:
    return found["ours_us"] / found["theirs_us"] if "ours_us" in found else float("inf")


def _measure(keys: list[str]) -> dict[str, Any]:
    """Measure cases in one process, until one takes too long or ends it."""
    settings = {"TVM_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "TVM_BIND_THREADS": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.operators_speed.measure", *keys],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert process.stdout is not None
    found: dict[str, Any] = {}
    current = keys[0]
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    while True:
        if not selector.select(SECONDS):
            process.kill()
            process.wait()
            return {**found, current: {"failed": f"takes more than {SECONDS} s"}}
        line = process.stdout.readline()
        if not line:
            break
        entry = json.loads(line)
        if "begin" in entry:
            current = entry["begin"]
            continue
        found[entry.pop("case")] = entry
        print(current, _shown(entry), flush=True)
    if process.wait() and current not in found:
        found[current] = {"failed": f"the process ended with {process.returncode}"}
    return found


def _shown(entry: dict[str, Any]) -> str:
    if "ours_us" not in entry:
        return str(entry)
    return f"{entry['ours_us']:.1f} us, {_ratio(entry):.2f} times ONNX Runtime's"


if __name__ == "__main__":
    raise SystemExit(main())
