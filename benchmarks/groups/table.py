"""What a survey of groups has found, for a reader."""

from typing import Any

_WIDTH = 60  # of a group's title
_SHOWN = 15


def summary(record: dict[str, Any]) -> str:
    """Tell how many groups there are, which are slower than their parts, and which are broken."""
    groups = record["groups"]
    timed = [g for g in groups if "ratio" in g]
    total = sum(m["groups"] for m in record["models"])
    lines = [
        f"{len(groups)} distinct groups of several operators in {len(record['models'])} models "
        f"({total} groups in all), fused over parts:",
    ]
    if timed:
        ratios = sorted(g["ratio"] for g in timed)
        lines[0] += f" {ratios[0]:.2f} to {ratios[-1]:.2f}, median {ratios[len(ratios) // 2]:.2f}"
    lines.append(f"slower by more than 5 %: {record['losses']}")
    slow = timed[: record["losses"]]
    if slow:
        lines += [
            "",
            "| group | template | fused us | parts us | ratio | in |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_row(g) for g in slow]
    lines += [
        f"{g['status']}: {_short(g['title'])}: {g['reason']}"
        for g in groups
        if g["status"] != "right"
    ]
    return "\n".join(lines)


def render(record: dict[str, Any]) -> str:
    """Write the page: the summary, and the groups that gain least and most."""
    timed = [g for g in record["groups"] if "ratio" in g]
    found = record["environment"]
    head = ["| group | template | fused us | parts us | ratio | in |", "|---|---|---|---|---|---|"]
    return "\n".join(
        [
            "# Fused groups against their parts",
            "",
            "Generated from `results/groups.json.xz` by `python -m benchmarks.groups`; edits are"
            " lost.",
            "",
            f"On {found['cpu']}, {record['settings']['threads']} threads. The parts are the"
            " group's members one by one, each in this project's own kernel. A ratio below 1 says"
            " that fusing pays.",
            "",
            summary(record),
            "",
            f"## The {_SHOWN} that gain least",
            "",
            *head,
            *map(_row, timed[:_SHOWN]),
            "",
            f"## The {_SHOWN} that gain most",
            "",
            *head,
            *map(_row, reversed(timed[-_SHOWN:])),
            "",
        ]
    )


def _row(group: dict[str, Any]) -> str:
    us = group["us"]
    where = ", ".join(f"{name} x{calls}" for name, calls in group["models"].items())
    return (
        f"| {_short(group['title'])} | {group['template']} | {us['fused']} | {us['parts']} "
        f"| {group['ratio']} | {where} |"
    )


def _short(title: str) -> str:
    return title if len(title) <= _WIDTH else title[: _WIDTH - 3] + "..."
