"""The page of a record."""

from collections.abc import Iterator
from typing import Any

from benchmarks.markdown import table

from . import plot
from .counting import WAYS
from .depth import FRONTENDS
from .floors import floors

COLUMNS = {
    "operators": "{:d}",
    "flops": "{:.2f}",
    "bytes": "{:.1f}",
    "kernels": "{:d}",
    "seconds": "{:.1f}",
}
SCALES = {"flops": 1e9, "bytes": 1e6}


def render(record: dict[str, Any]) -> str:
    """Write the page."""
    lines = [
        "# What rewriting is worth",
        "",
        "Generated from `results/rewriting.json.xz` by `python -m benchmarks.rewriting`; edits are"
        " lost.",
        "",
        "`none`: only simplifications that are no algebra. `greedy`: DNNFusion's published search,"
        " the rule that saves most operations first. `search`: equal forms, the cheapest by the"
        " planner's cost. All with the laws that need no flag, for the CPU; the rest of the"
        " compilation is the same.",
        "",
        *_floors(record),
        "## Models",
        "",
        "Operators after rewriting; GFLOP, MB of memory traffic and kernels of the plan; seconds of"
        " one core for the rewriting stage.",
        "",
        *table(
            ["model", "", "operators", "GFLOP", "MB", "kernels", "seconds"],
            _counts(record["models"]),
        ),
    ]
    if any("latency" in model for model in record["models"].values()):
        lines += [
            "",
            "## Latency",
            "",
            "Milliseconds on the CPU, the three in turns in one process, medians; results of all"
            " were compared first, on three random inputs: the largest error against the model"
            " that is not rewritten, relative to the largest value.",
            "",
            *table(["model", *WAYS, "search / none", "error"], _latencies(record["models"])),
        ]
    if record["depths"]:
        lines += [
            "",
            "## Growth with depth",
            "",
            "BERT-base built with so many layers, through both importers: operators as imported,"
            " seconds of one core for the rewriting stage.",
            "",
            *table(
                ["layers", *(f"{f}: {what}" for f in FRONTENDS for what in ("operators", "s"))],
                map(_depth, record["depths"].items()),
            ),
            "",
            "![Seconds by layers](results/depths.svg)",
        ]
    return "\n".join(lines) + "\n"


def drawing(record: dict[str, Any]) -> str | None:
    """Draw seconds by layers; None where nothing was measured."""
    depths = record["depths"]
    if not depths:
        return None
    series = {
        frontend: [(int(layers), row[frontend]["seconds"]) for layers, row in depths.items()]
        for frontend in FRONTENDS
    }
    return plot.lines(series, "layers of BERT-base", "seconds of the rewriting stage")


def _floors(record: dict[str, Any]) -> list[str]:
    rows = [
        [floor.asked, floor.found, "met" if floor.is_met else "**missed**"]
        for floor in floors(record)
    ]
    return ["## Floors", "", *table(["asked", "found", ""], rows), ""] if rows else []


def _counts(models: dict[str, Any]) -> Iterator[list[str]]:
    for name, model in models.items():
        for way in WAYS:
            row = model["counts"][way]
            cells = [f.format(_scaled(row, key)) for key, f in COLUMNS.items()]
            yield [name if way == WAYS[0] else "", way, *cells]


def _scaled(row: dict[str, Any], key: str) -> Any:
    return row[key] / SCALES[key] if key in SCALES else row[key]


def _latencies(models: dict[str, Any]) -> Iterator[list[str]]:
    for name, model in models.items():
        found = model.get("latency")
        if found:
            times = [found[way]["ms"] for way in WAYS]
            ratio = found["search"]["ms"] / found["none"]["ms"]
            worst = max(row["error"] for row in found.values())
            yield [name, *(f"{ms:.2f}" for ms in times), f"{ratio:.2f}", f"{worst:.0e}"]


def _depth(item: tuple[str, Any]) -> list[str]:
    layers, row = item
    cells = [(str(row[f]["operators"]), f"{row[f]['seconds']:.1f}") for f in FRONTENDS]
    return [layers, *(cell for pair in cells for cell in pair)]
