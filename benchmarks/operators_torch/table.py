"""The record of a sweep and the page made of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

from benchmarks.markdown import table

from . import core
from .counts import counts
from .samples import DTYPES
from .sweep import CaseResult

OUTCOMES = ("right", "refused", "wrong", "crash", "hang", "no program")
#: What fails the check.
BAD = ("wrong", "crash", "hang")

_HEAD = """# PyTorch's operator samples

Generated from `results/operators_torch.json` by `python -m benchmarks.operators_torch`; edits are
lost.

Sample inputs of PyTorch's own operator database go through `torch.export`, `tvm_fusion.compile` and
a call, and are compared with eager PyTorch: number, dtype and shape of the results, values within
the dtype's tolerance or as near to PyTorch's results in float64. Complex tensors are passed as real
ones with a last axis of two, as `torch.view_as_real` gives them. *right*: they agree. *refused*:
one sentence names the operator before work starts. *wrong*, *crash*, *hang*: there should be none.
*no program*: PyTorch itself cannot run or export the sample. Percentages are of the samples that
are a program.
"""


def record_of(results: Iterable[CaseResult]) -> dict[str, list[str]]:
    """Write results compactly: by operator, a text for each dtype in their order.

    ``2`` samples right are ``"2"``; others follow as ``"1 refused: reason"``.
    """
    record: dict[str, dict[str, str]] = {}
    for result in results:
        record.setdefault(result.name, {})[result.dtype] = _text(result.outcomes)
    return {
        name: [by_dtype.get(dtype, "") for dtype in DTYPES]
        for name, by_dtype in sorted(record.items())
    }


def merged(before: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Join records: what was swept again replaces what was known."""
    empty = [""] * len(DTYPES)
    return {
        name: [
            new or old
            for new, old in zip(now.get(name, empty), before.get(name, empty), strict=True)
        ]
        for name in sorted({*before, *now})
    }


def _text(outcomes: Iterable[Mapping[str, Any]]) -> str:
    counts = Counter((o["outcome"], _short(o.get("reason", ""))) for o in outcomes)
    right = sum(n for (outcome, _), n in counts.items() if outcome == "right")
    rest = [f"{n} {o}: {why}" for (o, why), n in sorted(counts.items()) if o != "right"]
    return "; ".join([*([str(right)] if right or not rest else []), *rest])


def _short(reason: str) -> str:
    """Name the operator of a refusal; its advice is the compiler's to give."""
    found = re.search(r"unsupported operators ([^;]+)", reason)
    text = found[1] if found else re.split(r" is not supported|; ", reason)[0]
    return re.sub(r"\s+", " ", text.replace(" (1x)", ""))[:90]


def defects(record: Mapping[str, list[str]]) -> list[str]:
    """List the operators with bad rows."""
    return [
        name
        for name in record
        if any(counts({name: record[name]})[d][b] for d in DTYPES for b in BAD)
    ]


def page(stored: Mapping[str, Any]) -> str:
    """Write the page: totals, then every operator."""
    record, (swept, all_of) = stored["operators"], stored["cases"]
    totals = counts(record)
    rows = []
    for dtype, total in totals.items():
        programs = sum(total.values()) - total["no program"]
        share = f"{100 * total['right'] / programs:.0f} %" if programs else ""
        rows.append([dtype, *(str(total[o]) for o in OUTCOMES), share])
    lines = [_HEAD, f"Last sweep: `{stored['command']}`."]
    lines += [f"Swept so far: {swept} of {all_of} cases (an operator in a dtype).", ""]
    lines += table(["dtype", *OUTCOMES, "right of programs"], rows)
    lines += ["", "## Core ATen", "", *wrap(core.paragraph(stored["core"]), 100), ""]
    lines += ["## By operator", "", "Numbers alone are samples that are right.", ""]
    lines += table(["operator", *DTYPES], [[n, *texts] for n, texts in record.items()])
    return "\n".join(lines) + "\n"
