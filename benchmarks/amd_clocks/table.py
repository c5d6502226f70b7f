"""The page: of each architecture its kernels, the dearest of a model first."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import table

from .record import COLUMNS, LOOPS, load

_HEAD = """# AMD kernels by the clocks of their machine code

**No device was there: nothing here was measured.** Groups of models of the zoo, planned in float16;
their kernels are compiled, and of each launch up to three blocks run in
[an interpreter of AMD machine code](../../tests/emulator/amd). Issue clocks of a wave by kind, LDS
clocks of a block with bank conflicts and without, bytes that its lanes ask for, loads of two bytes
or one of a lane; registers of the code object. Microseconds are those of [a model](model.py) of
these counts and the data sheet's rates, 2 us for the launch included; what they are bound by stands
beside, and the planner's price by its roofline behind. The planner's coefficients for these GPUs
are [fitted to these times](../cost_model/README.md); other ways to compute the groups were counted
for that as well. Plans are those of the roofline, before there were such coefficients; tiles of
gfx90a and gfx1100 those of a model that took another device's clocks for theirs, which has been
mended since: these rows and what is fitted to them are stale, and launches other than ResNet-50's
on gfx1100 and MobileNetV2's. By

    python -m benchmarks.amd_clocks [--loops | --launches]
"""
_LOOPS = """Inner loops: matrix clocks of all that a wave issues; products from a global load to
the wait for it; clocks of the LDS that the waves of a compute unit share, of those of products."""
_PADDING = 64  # bytes of LDS that a claim may be above: of the last row
_ROWS = 14  # of an architecture: those that its models spend most in


def page() -> str:
    """Write the page of the record, as the site has it."""
    return render(load())


def render(data: Mapping[str, Any]) -> str:
    """Write the page."""
    lines = [_HEAD]
    for arch, one in data.items():
        others = sum(row["calls"] == 0 for row in one["rows"])
        rows = [row for row in one["rows"] if "error" not in row and row["calls"]]
        lost = [row for row in one["rows"] if "error" in row]
        kernels = [k for row in rows for k in row["kernels"]]
        spilling = sum(k[COLUMNS.index("spills")] > 0 for k in kernels)
        narrow = sum(k[COLUMNS.index("narrow loads")] > 0 for k in kernels)
        conflicts = [COLUMNS.index(name) for name in ("LDS clocks", "without conflicts")]
        busy, ideal = (sum(k[at] for k in kernels) for at in conflicts)
        lines += [f"## {arch}", ""]
        lines.append(
            f"{len(rows)} groups, {len(kernels)} kernels, {one['date']}; {len(lost)} groups were "
            f"not counted; {others} other ways were. {spilling} kernels spill, {narrow} have loads "
            "of one or two bytes; bank "
            f"conflicts make LDS {busy / max(ideal, 1):.2f} times as busy."
        )
        lines += ["", _claims(rows)]
        if found := [[*map(_cell, row)] for row in one.get("loops", ())]:
            lines += ["", _LOOPS, "", *table(LOOPS, found)]
        if found := one.get("launches", ()):
            lines += ["", _launches(found)]
        dear = sorted(rows, key=lambda row: -row["calls"] * row["us"])[:_ROWS]
        body = [
            [
                *(row["model"], f"{row['title'][:50]} x{row['calls']}", *map(_cell, kernel)),
                f"{row['roofline_us']:.1f}",
            ]
            for row in dear
            for kernel in row["kernels"]
        ]
        lines += ["", *table(["model", "group", *COLUMNS, "roofline us"], body), ""]
    return "\n".join(lines)


def _launches(rows: Sequence[Sequence[Any]]) -> str:
    """Compare the launches of models with those for an H100."""
    told = [f"{model} {own} ({cuda})" for model, own, cuda in rows]
    few = sum(own <= cuda for _, own, cuda in rows)
    return (
        f"Launches of a call, and of the same model for sm_90a: {few} of {len(rows)} models have "
        f"no more; {', '.join(told)}. MobileNetV2's three are pairs of products that sm_90a "
        "computes back to back in one kernel, of wgmma; AMD's have none."
    )


def _claims(rows: Sequence[Mapping[str, Any]]) -> str:
    """Compare registers and LDS of code objects with what claims say."""
    registers, shared, away = [], 0, []
    known = [row for row in rows if any(row["claimed"])]
    for row in known:
        of_claim, lds = row["claimed"]
        own = max(kernel[COLUMNS.index("VGPR")] for kernel in row["kernels"])
        most = max(kernel[COLUMNS.index("LDS bytes")] for kernel in row["kernels"])
        if of_claim:
            registers.append(own / of_claim)
        shared += 0 <= lds - most <= _PADDING
        if not 0 <= lds - most <= _PADDING:
            away.append(f"{row['title'][:40]} ({lds} claimed, {most} taken)")
    told = f"LDS is as claimed in {shared} of {len(known)} groups that claim on-chip memory"
    if away:
        told += f"; not of {'; '.join(away[:4])}"
    if registers:
        low, middle, high = (sorted(registers)[i] for i in (0, len(registers) // 2, -1))
        told += f". Registers of {len(registers)} groups are {low:.2f} to {high:.2f} times those "
        told += f"claimed, {middle:.2f} in the median"
    return told + "."


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
