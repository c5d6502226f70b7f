"""Sweep models of many architectures: ``python -m benchmarks.robustness``. Needs ``zoo``."""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import records

from .table import GOOD, page

HERE = Path(__file__).parent
RECORD = HERE / "results" / "robustness.json.xz"
NAMES = ("outcome", "seconds", "kernels", "error", "gain", "reference", "family", "reason")
CELLS = (
    "cpu:fp32",
    "cpu:fp16",
    "stock",
    "cuda:sm_90a:fp32",
    "cuda:sm_90a:fp16",
    "rocm:gfx942:fp32",
    "rocm:gfx942:fp16",
)


def main() -> int:
    """Sweep, write the record and its page; returns 1 if a cell of ours is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression over models")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--limit", type=float, default=600, help="seconds a cell")
    parser.add_argument("--missing", action="store_true", help="leave out what is known")
    parser.add_argument("--record", type=Path, default=RECORD, help="file of results")
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="records to add first")
    parser.add_argument("--render", action="store_true", help="write the page again, no more")
    options = parser.parse_args()
    os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS")})
    os.environ["HF_HUB_OFFLINE"] = "1"
    found = load(options.record) if options.record.exists() else {}
    for other in options.join:
        for name, rows in load(other).items():
            found[name] = {**found.get(name, {}), **rows}
    from .catalog import FAMILIES

    families = {name: family for family, models in FAMILIES.items() for name in models}
    if not options.render:
        _sweep(options, found, families)
    if options.record == RECORD:
        _store(RECORD, found, families)
        (HERE / "README.md").write_text(page(load(RECORD), len(families)))
    ours = [row for rows in found.values() for cell, row in rows.items() if cell != "stock"]
    return 1 if any(row["outcome"] in ("wrong", "crash", "hang") for row in ours) else 0


def _sweep(options: argparse.Namespace, found: dict[str, Any], families: Mapping[str, str]) -> None:
    """Run what is asked for, and add it to what is known."""
    from .sweep import sweep

    cells = options.cells.split(",")
    for one in (name for name in families if re.search(options.only, name)):
        todo = [c for c in cells if not (options.missing and c in found.get(one, {}))]
        is_program = found.get(one, {}).get("export", {}).get("outcome", "right") == "right"
        if not todo or (options.missing and not is_program):
            continue
        for name, rows in sweep([one], todo, options.limit):
            for cell, row in rows.items():
                if row["outcome"] not in GOOD:
                    print(name, cell, json.dumps(row), flush=True)
            found[name] = {**found.get(name, {}), **rows}
            _store(options.record, found, families)


def load(path: Path) -> dict[str, Any]:
    """Read a record: of each model its rows, by cell."""
    record = records.read(path)
    names = record["names"]
    return {
        model: {
            cell: {k: v for k, v in zip(names, row, strict=False) if v is not None}
            for cell, row in rows.items()
        }
        for model, rows in record["models"].items()
    }


def _store(path: Path, found: Mapping[str, Any], families: Mapping[str, str]) -> None:
    """Write a record in the order of the catalog: rows are lists, without nulls at the end."""
    models = {name: found[name] for name in families if name in found}
    for name, rows in models.items():
        rows["export"]["family"] = families[name]
    values = {
        name: {cell: [row.get(key) for key in NAMES] for cell, row in rows.items()}
        for name, rows in models.items()
    }
    for row in (row for rows in values.values() for row in rows.values()):
        while row[-1] is None:
            row.pop()
    records.write(path, {"names": NAMES, "models": values})


if __name__ == "__main__":
    sys.exit(main())
