"""The page of a record."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

from benchmarks.markdown import table

from .case import SIZES

LIMIT = 2.0


def render(record: Mapping[str, Any]) -> str:
    """Write the page: geometric means, what is slow, what failed, all cases."""
    cases = record["cases"]
    ratios = {k: v["ours_us"] / v["theirs_us"] for k, v in cases.items() if "ours_us" in v}
    lines = [
        "# Single operators on a CPU against ONNX Runtime",
        "",
        "Generated from `results/operators.json` by `python -m benchmarks.operators_speed`; edits "
        "are lost.",
        "",
        f"{_environment(record['environment'])} Models of one ONNX operator with numpy inputs, two "
        "threads each. Results are compared first. Both take turns in one process, and of each the "
        "quickest call counts, since other processes share the machine; a call from Python is "
        "timed, with everything that it does. A ratio of 2 means twice ONNX Runtime's time.",
        "",
        *_load(record["environment"]),
        *table(["size", "cases", "geometric mean", "above 2"], _summary(ratios)),
        "",
        f"## Above {LIMIT:g}",
        "",
    ]
    slow = sorted((k for k, r in ratios.items() if r > LIMIT), key=lambda k: -ratios[k])
    lines += table(
        ["case", "ours, us", "ONNX Runtime, us", "ratio"],
        [[k, *_times(cases[k]), f"{ratios[k]:.2f}"] for k in slow],
    )
    failed = {k: v for k, v in cases.items() if "ours_us" not in v}
    lines += ["", "## Not measured", ""]
    lines += table(["case", "why"], [[k, _why(v)] for k, v in failed.items()])
    lines += ["", "## All", ""]
    names = dict.fromkeys(k.partition("/")[2] for k in cases)
    rows = []
    for name in names:
        cells = [cases.get(f"{size}/{name}", {}) for size in SIZES]
        rows.append([f"`{name}`", *map(_cell, cells)])
    headings = [f"{size} {m}x{n}" for size, (m, n) in SIZES.items()]
    lines += table(["operator: ours / theirs, us", *headings], rows)
    return "\n".join(lines) + "\n"


def _summary(ratios: Mapping[str, float]) -> list[list[str]]:
    rows = []
    for size in (*SIZES, "all"):
        chosen = [r for k, r in ratios.items() if size in ("all", k.partition("/")[0])]
        if chosen:
            above = sum(r > LIMIT for r in chosen)
            rows.append([size, str(len(chosen)), f"{geometric_mean(chosen):.2f}", str(above)])
    return rows


def _times(case: Mapping[str, Any]) -> list[str]:
    return [f"{case[key]:.1f}" for key in ("ours_us", "theirs_us")]


def _cell(case: Mapping[str, Any]) -> str:
    if "ours_us" not in case:
        return "" if not case else "-"
    ours, theirs = _times(case)
    return f"{ours} / {theirs} = {case['ours_us'] / case['theirs_us']:.2f}"


def _why(case: Mapping[str, Any]) -> str:
    return (case.get("failed") or f"wrong, {case['wrong']}").replace("|", "/")


def _environment(found: Mapping[str, Any]) -> str:
    versions = found.get("packages", {})
    runtime = versions.get("onnxruntime", "")
    return f"{found.get('cpu', 'A CPU')}, ONNX Runtime {runtime}.".replace(" .", ".")


def _load(found: Mapping[str, Any]) -> list[str]:
    if "load" not in found:
        return []
    return [
        f"Load while this was measured: {found['load']}. A call that waits for its second thread "
        "then takes some turns of the scheduler, thousands of microseconds; such rows, and others "
        "above 1, say little until they are measured again: "
        "`python -m benchmarks.operators_speed --above 1`.",
        "",
    ]
