"""The page of a record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.markdown import table

from .counting import TARGETS, WAYS
from .expressions import EXPRESSIONS
from .table5 import MODELS
from .taso import GRAPHS, PUBLISHED


def render(record: dict[str, Any]) -> str:
    """Write the page."""
    lines = [
        "# Rewriting and fusion on the literature's own graphs",
        "",
        "Generated from `results/literature.json` by `python -m benchmarks.literature`; edits are"
        " lost. All figures are the planner's, for float32 on a CPU with AVX2 and float16 on"
        " `sm_90a`, at batch 1; nothing is measured. `none`: no algebra; `search`: the default;"
        " `reassociate`: with `--allow reassociate`. A **bold** figure is a loss.",
        "",
        "## TASO's graphs",
        "",
        "After TASO (SOSP 2019) and TENSAT (MLSys 2021); published is how much faster TENSAT's"
        " graph is than the original, on a T4 without fusion by a compiler.",
        "",
        *table(
            ["graph", "target", "published", *(f"{way}: us" for way in WAYS), "GFLOP", "kernels"],
            _taso(record.get("taso", {})),
        ),
        "",
        "## DNNFusion's table 5",
        "",
        "Kernels, beside the fused layers that DNNFusion (PLDI 2021) is left with on a phone.",
        "",
        *table(
            ["model", "operators", "DNNFusion", *TARGETS],
            _table5(record.get("table5", {})),
        ),
        "",
        "Not here: Faster and Mask R-CNN.",
        "",
        "## Expressions",
        "",
        *_expressions(record.get("expressions", {})),
    ]
    return "\n".join(lines) + "\n"


def slower(record: dict[str, Any]) -> list[tuple[str, str, str]]:
    """List graphs, targets and ways of TASO's that take longer than without algebra."""
    return [
        (name, target, way)
        for name, targets in record.get("taso", {}).items()
        for target, ways in targets.items()
        for way, found in ways.items()
        if found["us"] > ways["none"]["us"]
    ]


def reached(record: dict[str, Any], target: str, way: str) -> list[str]:
    """List expressions that take no more kernels than the best known plan."""
    found = record.get("expressions", {})
    return [n for n in found if found[n][target][way]["kernels"] <= EXPRESSIONS[n].kernels]


def _taso(graphs: dict[str, Any]) -> Iterator[list[str]]:
    for name in (name for name in GRAPHS if name in graphs):
        for target, ways in graphs[name].items():
            found = [ways[way] for way in WAYS]
            none = found[0]["us"]
            times = [_marked(f"{one['us']:.1f}", one["us"] > none) for one in found]
            flops = " / ".join(f"{one['flops'] / 1e9:.2f}" for one in found)
            kernels = " / ".join(str(one["kernels"]) for one in found)
            yield [name, target, f"+{PUBLISHED[name]} %", *times, flops, kernels]


def _table5(models: dict[str, Any]) -> Iterator[list[str]]:
    for name, model in MODELS.items():
        if name in models:
            counts = [models[name][target]["search"]["kernels"] for target in TARGETS]
            cells = [_marked(str(count), count > model.fused) for count in counts]
            yield [name, str(model.operators), str(model.fused), *cells]


def _expressions(found: dict[str, Any]) -> list[str]:
    if not found:
        return []
    ways = ("search", "reassociate")
    columns = [(target, way) for target in TARGETS for way in ways]
    record = {"expressions": found}
    sums = [f"{len(reached(record, *column))} of {len(found)}" for column in columns]
    rows = [["at the best known", "", *sums]]
    for name in (name for name in EXPRESSIONS if name in found):
        best = EXPRESSIONS[name].kernels
        counts = [found[name][target][way]["kernels"] for target, way in columns]
        if max(counts) > best:
            rows.append([name, str(best), *(_marked(str(n), n > best) for n in counts)])
    return [
        "Kernels of those that take more than the best known plan somewhere.",
        "",
        *table(["expression", "best", *(f"{target}: {way}" for target, way in columns)], rows),
    ]


def _marked(text: str, is_loss: bool) -> str:
    return f"**{text}**" if is_loss else text
