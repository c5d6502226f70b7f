"""The page of a sweep: totals, what is wrong, and what float32 itself does not hold."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import read

RECORD = Path(__file__).parent / "results" / "half_sweep.json.xz"
OUTCOMES = ("right", "as peer", "wrong", "crash", "refused")
_HEAD = """# Operators in half types

By `python -m benchmarks.half_sweep`.

ONNX's backend cases of one node and samples of PyTorch's operator database, their floating point
tensors of float16 and bfloat16, on this machine's CPU: as drawn, and scaled so that the largest
element is the type's largest number, 1e4, 1, 1e-4, twice its smallest normal number or eight times
its smallest one; the first tensor alone, and all of them. The reference is the same in float64
(onnx's reference, eager PyTorch) of the same half numbers. *Right*: no further off than two units
in the last place of the half type and 16 times what float32 makes of the same numbers is. What
overflows in float32, and not in float64, is told and does not count: bfloat16 has float32's range.
*As peer*: wherever a sample is wrong, eager PyTorch's own result in the half type is, too, and this
one is off by no more than four times as much: functions that PyTorch composes in Python of
operators that each round, and squares of bfloat16 beyond float32.
"""


def load() -> dict[str, dict[str, Any]]:
    """Read the record: what became of each case, by ``framework dtype name``."""
    kinds = read(RECORD) if RECORD.exists() else {}
    return {
        f"{kind} {name}": {"outcome": found} if isinstance(found, str) else found
        for kind, cases in kinds.items()
        for name, found in cases.items()
    }


def page() -> str:
    """Write the page of the record, as the site has it."""
    return render(dict(sorted(load().items())))


def bad(stored: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the cases that are wrong or crash."""
    return [name for name, found in stored.items() if found["outcome"] in ("wrong", "crash")]


def render(stored: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the page of a record: outcomes by ``framework dtype name``."""
    totals: dict[str, Counter[str]] = {}
    for name, found in stored.items():
        kind = " ".join(name.split()[:2])
        totals.setdefault(kind, Counter())[found["outcome"]] += 1
    rows = [[kind, *(str(count[o]) for o in OUTCOMES)] for kind, count in totals.items()]
    lines = [_HEAD, *table(["", *OUTCOMES], rows), "", "## Wrong", ""]
    lines += _listed(stored, bad(stored))
    lines += ["", "## As peer", ""]
    lines += _listed(stored, [n for n, f in stored.items() if f["outcome"] == "as peer"])
    lines += ["", "## Beyond float32", ""]
    noted = {n: f["noted"] for n, f in stored.items() if f.get("noted")}
    lines += [f"* `{name}`: {', '.join(labels)}" for name, labels in noted.items()] or ["Nothing."]
    return "\n".join(lines) + "\n"


def _listed(stored: Mapping[str, Mapping[str, Any]], names: list[str]) -> list[str]:
    lines = []
    for name in names:
        wrong = stored[name].get("wrong", {})
        what = [stored[name].get("reason", ""), *(f"{label}: {t}" for label, t in wrong.items())]
        lines.append(f"* `{name}`: {'; '.join(text for text in what if text)}")
    return lines or ["Nothing."]
