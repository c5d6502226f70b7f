"""The claims of templates beside what ptxas allocated, for a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.markdown import table

ALLOWED = 0.25  # of what is allocated, by which a claim may miss it
LEAST_BYTES = 1024  # of shared memory: the system's own of each block
_WIDTH = 60  # of a group's title
_HEAD = (
    "template",
    "group",
    "registers claimed",
    "allocated",
    "shared claimed",
    "allocated",
    "spilled bytes",
    "stack",
    "in",
)

Row = Mapping[str, Any]


def largest(row: Row) -> dict[str, int]:
    """Return what the largest of a group's kernels takes, of each resource; none is not kept."""
    kernels = [Counter(k) for k in row["kernels"]]
    return {
        "registers": max(k["registers"] for k in kernels),
        "shared": max(k["static_shared"] + k["dynamic_shared"] for k in kernels),
        "spills": sum(k["spills"] for k in kernels),
        "stack": max(k["stack"] for k in kernels),
    }


def is_missed(row: Row, resource: str) -> bool:
    """Whether a claim of registers or shared memory is off by more than is allowed."""
    claimed, real = row["claimed"], largest(row)[resource]
    if not claimed["registers"] and (resource == "registers" or not claimed["shared"]):
        return False  # nothing is claimed
    least = LEAST_BYTES if resource == "shared" else 0
    return abs(claimed[resource] - real) > max(least, ALLOWED * real)


def summary(record: Row) -> str:
    """Tell per template how many claims hold, and list the misses and spills."""
    rows = record["groups"]
    lines = [*_overview(rows)]
    for title, found in _sections(rows):
        lines += ["", f"## {title} ({len(found)})", "", *table(_HEAD, map(_line, found))]
    return "\n".join(lines)


def _sections(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    rows = list(rows)
    percent = round(100 * ALLOWED)
    missed = [r for r in rows if is_missed(r, "registers") or is_missed(r, "shared")]
    spilled = [r for r in rows if largest(r)["spills"] or largest(r)["stack"]]
    found = [
        (f"Claims that miss by more than {percent} %", missed),
        ("Spills and stack frames", spilled),
    ]
    return [section for section in found if section[1]]


def _overview(rows: Iterable[Row]) -> list[str]:
    templates: dict[str, list[Row]] = {}
    for row in rows:
        templates.setdefault(row["template"], []).append(row)

    def line(name: str, some: list[Row]) -> list[str]:
        claimed = [r for r in some if r["claimed"]["registers"]]
        ratios = sorted(r["claimed"]["registers"] / largest(r)["registers"] for r in claimed)
        used = sorted(largest(r)["registers"] for r in some)
        share = f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if ratios else "nothing is claimed"
        return [
            name,
            str(len(some)),
            str(sum(len(r["kernels"]) for r in some)),
            f"{used[0]} to {used[-1]}",
            str(len(claimed)),
            share,
            str(sum(is_missed(r, "registers") for r in some)),
            str(sum(is_missed(r, "shared") for r in some)),
            str(sum(bool(largest(r)["spills"]) for r in some)),
        ]

    head = (
        "template",
        "groups",
        "kernels",
        "registers allocated",
        "claim registers",
        "claimed over allocated",
        "registers missed",
        "shared memory missed",
        "groups that spill",
    )
    return table(head, (line(name, some) for name, some in sorted(templates.items())))


def _line(row: Row) -> list[str]:
    title, real = row["title"], largest(row)
    short = title if len(title) <= _WIDTH else f"{title[: _WIDTH - 3]}..."
    graphs = row["graphs"]
    where = graphs[0] if len(graphs) == 1 else f"{graphs[0]} and {len(graphs) - 1} more"
    claimed = row["claimed"]
    figures = claimed["registers"], real["registers"], claimed["shared"], real["shared"]
    return [row["template"], short, *map(str, (*figures, real["spills"], real["stack"])), where]


def render(record: Row) -> str:
    """Write the page."""
    rows = record["groups"]
    return "\n".join(
        [
            "# Claimed against allocated registers and shared memory",
            "",
            "Generated from `results/kernel_resources.json` by `python -m"
            " benchmarks.kernel_resources`; edits are lost.",
            "",
            f"The {len(rows)} distinct groups of the zoo's models and of the works of"
            f" `benchmarks/gpu`, planned for `{record['target']}`: what their claims say of"
            " a thread's registers and a block's shared memory, and what ptxas says (`nvcc"
            " -Xptxas=-v`). Of a group of several kernels the largest figures count.",
            "",
            summary(record),
            "",
        ]
    )
