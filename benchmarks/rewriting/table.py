"""The page of a record."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.markdown import table

from .counting import WAYS
from .depth import FRONTENDS

WIDTH, HEIGHT, MARGIN = 480, 300, 48
COLOURS = ("#1f77b4", "#d62728", "#2ca02c")


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]], x_title: str, y_title: str
) -> str:
    """Draw points and the lines between them; both axes begin at 0.

    Parameters
    ----------
    series
        Points by the line's name.
    x_title, y_title
        What the axes are.

    Returns
    -------
    str
        An SVG document.
    """
    points = [point for line in series.values() for point in line]
    x_most, y_most = (max(column) or 1.0 for column in zip(*points, strict=True))
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        return MARGIN + x / x_most * width, HEIGHT - MARGIN - y / y_most * height

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    left, bottom = place(0, 0)
    right, top = place(x_most, y_most)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="black"/>',
        text((left + right) / 2, HEIGHT - 10, x_title),
        text(left, top - 14, y_title, "start"),
        text(left - 6, top + 4, f"{y_most:.3g}", "end"),
        text(left - 6, bottom + 4, "0", "end"),
    ]
    for x in sorted({x for x, _ in points}):
        parts.append(text(place(x, 0)[0], bottom + 16, f"{x:g}"))
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        at = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at]
        parts.append(f'<g fill="{colour}">{text(left + 8, top + 16 * number, name, "start")}</g>')
    return "\n".join([*parts, "</svg>", ""])


FEWER = 0.18  # of GPT-2's kernels: DNNFusion (Niu et al., PLDI 2021, section 5) has 18 %
SLOWER = 0.03  # that a model may lose
SECONDS = 15.0  # of one core for BERT-base
MODEL = "gpt2"


@dataclass(frozen=True)
class Floor:
    """One thing that is asked."""

    # For the reader.
    asked: str
    found: str
    is_met: bool  # whether it is there


def floors(record: dict[str, Any]) -> Iterator[Floor]:
    """Judge what has been measured; what has not been is left out."""
    models = record["models"]
    counted = models.get(MODEL, {}).get("counts")
    if counted:
        before, after = counted["none"]["kernels"], counted["search"]["kernels"]
        yield Floor(
            f"{MODEL}: at least {FEWER:.0%} fewer kernels, as published",
            f"{before} to {after}: {1 - after / before:.0%} fewer",
            after <= before * (1 - FEWER),
        )
    ratios = {
        name: model["latency"]["search"]["ms"] / model["latency"]["none"]["ms"]
        for name, model in models.items()
        if "latency" in model
    }
    if ratios:
        worst = max(ratios, key=ratios.__getitem__)
        yield Floor(
            f"no model slower by more than {SLOWER:.0%}",
            f"the slowest is {worst}: {ratios[worst]:.2f} of its time",
            ratios[worst] <= 1 + SLOWER,
        )
    for frontend, seconds in _deepest(record):
        yield Floor(
            f"BERT-base through {frontend}: rewritten in {SECONDS:g} s of one core",
            f"{seconds:.1f} s",
            seconds <= SECONDS,
        )


def _deepest(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    depths = record["depths"]
    if "12" in depths:
        for frontend, row in depths["12"].items():
            yield frontend, row["seconds"]


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
    return line_chart(series, "layers of BERT-base", "seconds of the rewriting stage")


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
