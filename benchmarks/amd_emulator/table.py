"""The page of results: one row a kind of kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import table

from .run import ARCHS, DTYPES

_HEAD = """# AMD kernels in an emulator
Small graphs of every kind of kernel, compiled for gfx942 (wave64) and gfx1100 (wave32), run through
`tvm_fusion.load` in the AMD emulator of [tinygrad](https://github.com/tinygrad/tinygrad) and
compared with float64. No device was needed, none was used. Generated from
`results/amd_emulator.json` by

    TINYGRAD=/path/to/tinygrad python -m benchmarks.amd_emulator

Each cell is the largest difference in units of the precision's epsilon times the largest result.
The emulator runs waves one after the other: what only a race shows, it does not see; `--reverse`
runs them from the last to the first. Assembly is searched for missing waits by every build.

It drops the two lowest bits of the addresses of words in shared memory. Rows of an odd number of
halves begin between words, which these GPUs read as asked (unaligned access mode): the odd batched
GEMM of halves is wrong in the emulator alone, the even one is right.
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
