"""The claims of templates beside what ptxas allocated, for a reader."""

from __future__ import annotations

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
    "why",
)
#: Read from the machine code, by a graph and the template of its group.
_EPILOGUE = "sums and sigmoids of the epilogue, once a tile; none in the main loop"
REASONS = {
    ("unet2d", "elementwise"): "sin and cos of large arguments, CUDA's reduction in local memory",
    ("swiglu_block_512_4096_14336", "contraction"): _EPILOGUE,
    ("swiglu_joined_512_4096_14336", "contraction"): _EPILOGUE,
    ("layer_norm_gelu_5182x2488_bfloat16", "rows"): "16-bit registers of the masked last vector",
    (
        "float8_linear_128x768x768",
        "contraction",
    ): "mma.sync of float8 is unpacking to float16 there",
}

Row = Mapping[str, Any]


def largest(row: Row) -> dict[str, int]:
    """Return what the largest of a group's kernels takes, of each resource; none is not kept."""
    registers, static, dynamic, stack, spills = zip(*row["kernels"], strict=True)
    return {
        "registers": max(registers),
        "shared": max(map(sum, zip(static, dynamic, strict=True))),
        "spills": sum(spills),
        "stack": max(stack),
    }


def claimed(row: Row) -> dict[str, int]:
    """Return what a group's claim says of the same resources; 0 where it says nothing."""
    return dict(zip(("registers", "shared"), row["claimed"], strict=True))


def is_missed(row: Row, resource: str) -> bool:
    """Whether a claim of registers or shared memory is off by more than is allowed."""
    said, real = claimed(row), largest(row)[resource]
    if not said["registers"] and (resource == "registers" or not said["shared"]):
        return False  # nothing is claimed
    least = LEAST_BYTES if resource == "shared" else 0
    return abs(said[resource] - real) > max(least, ALLOWED * real)


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
        told = [r for r in some if claimed(r)["registers"]]
        ratios = sorted(claimed(r)["registers"] / largest(r)["registers"] for r in told)
        used = sorted(largest(r)["registers"] for r in some)
        share = f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if ratios else "nothing is claimed"
        return [
            name,
            str(len(some)),
            str(sum(len(r["kernels"]) for r in some)),
            f"{used[0]} to {used[-1]}",
            str(len(told)),
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
    said, kind = claimed(row), row["template"]
    figures = said["registers"], real["registers"], said["shared"], real["shared"]
    why = REASONS.get((graphs[0], kind), "")
    return [kind, short, *map(str, (*figures, real["spills"], real["stack"])), where, why]


def render(record: Row) -> str:
    """Write the page."""
    rows = record["groups"]
    return "\n".join(
        [
            "# Claimed against allocated registers and shared memory",
            "",
            "Generated from `results/kernel_resources.json.xz` by `python -m"
            " benchmarks.kernel_resources`; edits are lost.",
            "",
            f"The {len(rows)} distinct groups of the zoo's models and of the workloads of"
            f" `benchmarks/gpu`, planned for `{record['target']}`: a thread's"
            " registers and a block's shared memory by their claims, and by ptxas (`nvcc"
            " -Xptxas=-v`). For a group of several kernels the largest figures count.",
            "",
            summary(record),
            "",
        ]
    )
