"""The page of results: one row a kind of kernel."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import read, rows_of

from .case import DTYPES, FORMS
from .run import ARCHS

RECORD = Path(__file__).parent / "results" / "amd_emulator.json.xz"
_HEAD = """# AMD kernels in an interpreter
Small graphs of every kind of kernel, compiled for gfx90a, gfx942 (wave64) and gfx1100 (wave32), run
through `tvm_fusion.load` in [an interpreter of their machine code](../../tests/emulator/amd) and
compared with float64. No device was needed, none was used. By

    python -m benchmarks.amd_emulator

Each cell is the largest difference in units of the precision's epsilon times the largest result, of
static sizes and behind the stroke of symbolic ones. As int8 inputs are bytes with a scale, and the
result is quantised, in steps; products of bytes are exact. Sizes are odd.
Missing waits and barriers, races between waves, uninitialised registers and accesses out of bounds
fail whatever the order in which waves run.
"""


def load(path: Path = RECORD) -> dict[str, Any]:
    """Return the order and the runs of a record."""
    record = read(path)
    return {**record, "runs": rows_of(record["runs"])}


def page() -> str:
    """Write the page of the record, as the site has it."""
    return render(load())


def render(record: Mapping[str, Any]) -> str:
    """Write the page."""
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run in record["runs"]:
        found.setdefault((run["case"], run["arch"], run["dtype"]), []).append(run)
    names = dict.fromkeys(run["case"] for run in record["runs"])
    ran = {run["arch"] for run in record["runs"]}
    columns = [(arch, dtype) for arch in ARCHS if arch in ran for dtype in DTYPES]
    rows = [
        [name, *(_cells(found.get((name, *column), ())) for column in columns)] for name in names
    ]
    right = sum(r.get("right", False) for r in record["runs"])
    slow = [r for r in record["runs"] if r.get("out_of_registers")]
    lost = [r for r in record["runs"] if "failed" in r]
    lines = [_HEAD, *table(["kind", *(f"{a} {d}" for a, d in columns)], rows), ""]
    lines.append(f"{right} of {len(record['runs'])} are right.")
    every = {(run["arch"], run["form"]) for run in record["runs"]}
    wanted = [(arch, form) for arch in ARCHS for form in FORMS]
    if missing := [f"{arch} {form}" for arch, form in wanted if (arch, form) not in every]:
        lines.append(f"Not run by this command: {', '.join(missing)} (`--arch`, `--form`).")
    for title, some, told in (
        ("Out of registers, therefore slow:", slow, "out_of_registers"),
        ("Failed:", lost, "failed"),
    ):
        if some:
            lines += ["", title, "", *(_told(run, told) for run in some)]
    return "\n".join(lines) + "\n"


def _cells(runs: Sequence[Mapping[str, Any]]) -> str:
    """Write those of one column, static sizes first."""
    text = " / ".join(map(_cell, runs))
    return f"/ {text}" if text and runs[0]["form"] == "symbolic" else text


def _cell(run: Mapping[str, Any]) -> str:
    if "failed" in run:
        return "failed"
    return f"{run['error']:.2g}" if run["right"] else f"**wrong** ({run['error']:.2g})"


def _told(run: Mapping[str, Any], what: str) -> str:
    reasons = run[what] if isinstance(run[what], str) else " ".join(run[what]).lower()
    return f"* {run['case']}, {run['arch']} {run['dtype']}, {run['form']}: {reasons}"
