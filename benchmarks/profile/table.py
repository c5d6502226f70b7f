"""The table of measured decisions."""

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import table


def render(record: Mapping[str, Any]) -> str:
    """Write the page."""
    rows = [
        (
            name,
            one["measured"] + one["known"],
            one.get("layouts", ""),
            one["failed"],
            one["changed"],
            one["confirmed"],
            f"{one['kernels']} -> {one['kernels_profiled']}",
            one.get("load", ""),
            *_times(one),
        )
        for name, one in record["models"].items()
    ]
    head = [
        *("model", "questions", "layouts", "failed", "changed", "confirmed"),
        *("kernels", "load", "ms", "ms profiled", "gain"),
    ]
    return "\n".join(
        [
            "# Measured decisions of the planner",
            "",
            "Generated from `results/profile.json.xz` by `python -m benchmarks.profile`; edits are "
            "lost.",
            "",
            "Questions are the yellow cells, proposals and recomputations that the planner "
            "compared: fused against unfused; templates that claim the same group, the planner's "
            "against the other; and layouts of convolutions (counted separately), the model's "
            "choice against the other, including all that changes its layout and the layout "
            "kernels at the border. Changed: the measurement and the roofline model disagree; "
            "confirmed: they disagreed again when both were measured in another process. Whole "
            "models: minima of interleaved runs in one process, CPU time of the one thread; "
            "where the answers change no code, nothing is timed. Load: of the machine, "
            "averaged over 15 minutes.",
            "",
            f"On {record['environment'].get('cpu', 'this CPU')}.",
            "",
            *table(head, [list(map(str, row)) for row in rows]),
            "",
            "## What changed",
            "",
            *_changes(record["models"]),
            "",
            *_gpu(record.get("gpu")),
        ]
    )


FUSION = ("model", "operators", "fused us", "unfused us", "modelled fused", "unfused")
LAYOUT = ("model", "layout", "us", "other's us", "modelled", "other's")


def _times(one: Mapping[str, Any]) -> tuple[Any, ...]:
    if one.get("same_code"):
        return "the same code", "", ""
    return one["ms"], one["ms_profiled"], f"{one['ms'] / one['ms_profiled']:.3f}"


def _changes(models: Mapping[str, Any]) -> list[str]:
    """Write what is fused otherwise, then what is laid out otherwise, the model's choice first."""
    fused, laid_out = (_table(models, *of) for of in ((FUSION, False), (LAYOUT, True)))
    return [*fused, *([""] if fused and laid_out else []), *laid_out]


def _table(models: Mapping[str, Any], head: tuple[str, ...], is_layout: bool) -> list[str]:
    rows = [
        (name, change["title"], *change["measured_us"], *change["modelled_us"])
        for name, one in models.items()
        for change in one["changes"]
        if change.get("layout", False) == is_layout
    ]
    return table(head, [list(map(str, row)) for row in rows]) if rows else []


def _gpu(found: Mapping[str, Any] | None) -> list[str]:
    """Write what was measured where the device is, by folders of alternatives."""
    if found is None:
        return []
    code = {True: "the same", False: "another", None: ""}
    rows = [
        (
            name,
            one.get("device", ""),
            one["known"],
            one.get("layouts", ""),
            one["failed"],
            one["estimated"],
            one["changed"],
            f"{one['kernels']} -> {one['kernels_profiled']}",
            code[one.get("same_code")],
            *one.get("us", ("", "")),
        )
        for name, one in found["models"].items()
    ]
    head = ("model", "device", "answered", "layouts", "failed", "open", "changed", "kernels")
    return [
        "## On GPUs",
        "",
        f"Compiled for {found['target']}, float16; alternatives in turns, as CUDA graphs whose "
        "weights come from memory (`benchmarks/profile/gpu.py`). Open: questions of a plan that "
        "the answers changed, left to the model. Code: the model's library compiled with the "
        "answers, against that without; where both are the same, nothing is timed. Changed "
        "answers change no code where a larger accepted group contains theirs.",
        *(["", found["remark"]] if "remark" in found else []),
        "",
        *table((*head, "code", "us", "us profiled"), [list(map(str, row)) for row in rows]),
        "",
        *_changes(found["models"]),
        "",
    ]
