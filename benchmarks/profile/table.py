"""The table of measured decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import table


def render(record: Mapping[str, Any]) -> str:
    """Write the page."""
    rows = [
        (
            name,
            one["measured"] + one["known"],
            one["failed"],
            one["changed"],
            one["confirmed"],
            f"{one['kernels']} -> {one['kernels_profiled']}",
            one["ms"],
            one["ms_profiled"],
            f"{one['ms'] / one['ms_profiled']:.3f}",
        )
        for name, one in record["models"].items()
    ]
    changes = [
        (name, change["title"], *change["measured_us"], *change["modelled_us"])
        for name, one in record["models"].items()
        for change in one["changes"]
    ]
    head = [
        *("model", "questions", "failed", "changed", "confirmed"),
        *("kernels", "ms", "ms profiled", "gain"),
    ]
    return "\n".join(
        [
            "# Measured decisions of the planner",
            "",
            "Generated from `results/profile.json` by `python -m benchmarks.profile`; edits are "
            "lost.",
            "",
            "Questions are the yellow cells, proposals and recomputations that the planner "
            "compared; changed: the measurement decided otherwise than the roofline model; "
            "confirmed: so it did when both ways were measured again in another process. Whole "
            "models: minima in turns in one process, processor time of one thread.",
            "",
            f"On {record['environment'].get('cpu', 'this CPU')}.",
            "",
            *table(head, [list(map(str, row)) for row in rows]),
            "",
            "## What changed",
            "",
            *table(
                ("model", "operators", "fused us", "unfused us", "modelled fused", "unfused"),
                [list(map(str, row)) for row in changes],
            ),
            "",
        ]
    )
