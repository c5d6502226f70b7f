"""The page: correctness, robustness, compile time and speed beside stock TVM, model by model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import table

GOOD = ("right", "compiles")
TARGETS = {
    "cpu:fp32": "CPU fp32",
    "cpu:fp16": "CPU fp16",
    "cuda:sm_90a:fp32": "sm_90a fp32",
    "cuda:sm_90a:fp16": "sm_90a fp16",
    "rocm:gfx942:fp32": "gfx942 fp32",
    "rocm:gfx942:fp16": "gfx942 fp16",
}
_HEAD = """# Tiny models of many architectures

Generated from `results/robustness.json` by `python -m benchmarks.robustness`; edits are lost.

Models of transformers and diffusers, two layers wide enough to be odd, and networks in plain
PyTorch, with random weights, are exported by `torch.export`, compiled for every target, and on CPUs
run. *right*: every output is within 1e-4 (fp32) or 2e-2 (fp16; or twice the error of eager PyTorch
in float16) of eager PyTorch in float64, relative to the output's largest value; float32 where eager
PyTorch cannot run the model in float64. *compiles*: machine code was made; there is no device to
run it on. Seconds are processor time of one thread to compile and export, from import to library.
*gain* is the time of stock TVM's module (its own importer and default pipeline for this CPU) over
ours, one thread, the least of seven calls each; models are so small that calls dominate. *no
program*: `torch.export` itself fails. longformer and led test whether any token has global
attention: `torch.export.draft_export` makes their programs, of the branch that has none.
"""


def page(found: Mapping[str, Mapping[str, Any]], total: int) -> str:
    """Write the page of a record of some of ``total`` models."""
    programs = {n: r for n, r in found.items() if r.get("export", {}).get("outcome") == "right"}
    lines = [_HEAD, "## Totals", "", f"Swept so far: {len(found)} of {total} models.", ""]
    rows = []
    for cell, title in TARGETS.items():
        known = [r[cell] for r in programs.values() if cell in r]
        good = [r for r in known if r["outcome"] in GOOD]
        if known:
            spent = [r["seconds"] for r in good]
            middle = f"{statistics.median(spent):.1f}" if spent else ""
            share = f"{100 * len(good) / len(known):.0f} %"
            rows.append([title, str(len(known)), str(len(good)), share, middle])
    lines += table(["target", "models", "right or compiles", "share", "median s"], rows)
    lines += ["", *_stock(programs), ""]
    for family in dict.fromkeys(r["export"]["family"] for r in found.values()):
        models = [n for n, r in found.items() if r["export"]["family"] == family]
        lines += [f"## {family[0].upper()}{family[1:]}", ""]
        lines += table(
            ["model", *TARGETS.values(), "error fp32", "error fp16", "stock TVM", "gain"],
            [_row(name, found[name]) for name in models],
        )
        lines.append("")
    unknown = [n for n, r in found.items() if n not in programs]
    lines += [f"No programs: {', '.join(unknown)}.", ""] if unknown else []
    bad = [
        f"* {name}, {TARGETS[cell]}: {row['outcome']}: {row.get('reason', '')}"
        for name, rows in found.items()
        for cell, row in rows.items()
        if cell in TARGETS and row["outcome"] not in GOOD
    ]
    lines += ["## What fails, and why", "", *(bad or ["Nothing."])]
    return "\n".join(lines) + "\n"


def _stock(programs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    known = [r["stock"] for r in programs.values() if "stock" in r]
    right = [r for r in known if r["outcome"] == "right"]
    if not right:
        return []
    gain = statistics.geometric_mean(r["gain"] for r in right)
    wrong = sum(r["outcome"] == "wrong" for r in known)
    return [
        f"Stock TVM on the CPU in fp32: {len(right)} of {len(known)} right, {wrong} wrong, the "
        f"others do not compile. Geometric mean of the gain where it is right: {gain:.2f}."
    ]


def _row(name: str, rows: Mapping[str, Any]) -> list[str]:
    if rows.get("export", {}).get("outcome") != "right":
        return [name, *["no program"] * len(TARGETS), "", "", "", ""]
    cells = []
    for cell in TARGETS:
        row = rows.get(cell, {})
        outcome = row.get("outcome", "")
        cells.append(f"{row['seconds']:.1f} s" if outcome in GOOD else f"**{outcome}**" * bool(row))
    errors = [f"{rows.get(c, {}).get('error', ''):}" for c in ("cpu:fp32", "cpu:fp16")]
    stock = rows.get("stock", {})
    gain = f"{stock['gain']:.2f}" if stock.get("outcome") == "right" else ""
    return [name, *cells, *errors, stock.get("outcome", ""), gain]
