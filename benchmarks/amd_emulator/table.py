"""The page of results: one row a kind of kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import table

from .run import ARCHS, DTYPES

_HEAD = """# AMD kernels in an interpreter
Small graphs of every kind of kernel, compiled for gfx90a, gfx942 (wave64) and gfx1100 (wave32), run
through `tvm_fusion.load` in [an interpreter of their machine code](../../tests/emulator/amd) and
compared with float64. No device was needed, none was used. Generated from
`results/amd_emulator.json` by

    python -m benchmarks.amd_emulator

Each cell is the largest difference in units of the precision's epsilon times the largest result.
Missing waits and barriers, races between waves, uninitialised registers and accesses out of bounds
fail whatever the order in which waves run.
"""


def render(record: Mapping[str, Any]) -> str:
    """Write the page."""
    found = {(r["case"], r["arch"], r["dtype"]): r for r in record["runs"]}
    columns = [(arch, dtype) for arch in ARCHS for dtype in DTYPES]
    rows = [
        [name, *(_cell(found.get((name, *column))) for column in columns)]
        for name in dict.fromkeys(r["case"] for r in record["runs"])
    ]
    right = sum(r.get("right", False) for r in record["runs"])
    slow = [r for r in record["runs"] if r.get("out_of_registers")]
    lines = [_HEAD, *table(["kind", *(f"{a} {d}" for a, d in columns)], rows), ""]
    lines.append(f"{right} of {len(record['runs'])} are right. Out of registers, therefore slow:")
    lines += ["", *(_spilling(r) for r in slow)] if slow else [" none."]
    return "\n".join(lines) + "\n"


def _cell(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return ""
    if "failed" in run:
        return "failed"
    return f"{run['error']:.2g}" if run["right"] else f"**wrong** ({run['error']:.2g})"


def _spilling(run: Mapping[str, Any]) -> str:
    reasons = " ".join(run["out_of_registers"]).lower()
    return f"* {run['case']}, {run['arch']} {run['dtype']}: {reasons}"
