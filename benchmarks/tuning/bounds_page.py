"""The tables of what any tuning can gain at most, from ``bounds.json.xz``: see :mod:`.bounds`."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import read

RESULT = Path(__file__).parent / "bounds.json.xz"
FIELDS = ("title", "template", "calls", "configs", "us", "peak", "mflop", "kib")
SHOWN = 4  # kernels of a model that are listed
MODELS = [
    "model", "kernels", "one thread", "tasks", "arithmetic", "bound", "default reaches", "at most",
    "whole, one thread", "whole, all", "over bound", "load",
]  # fmt: skip
KERNELS = ["model", "kernel", "template", "calls", "configurations", "us", "bound", "gain"]

Kernel = Mapping[str, Any]


def bounds() -> dict[str, Any]:
    """Read what was measured; empty where nothing was."""
    return read(RESULT) if RESULT.exists() else {}


class Rates:
    """The highest rates of any kernel: share of its core's multiply-adds, and bytes.

    More than all multiply-adds is a clock that was faster for the kernel.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.attained = min(1.0, max(1e3 * k["mflop"] / k["us"] / k["peak"] for k in kernels))
        self.gbs = max(1.024 * k["kib"] / k["us"] for k in kernels)

    def arithmetic(self, kernel: Kernel) -> float:
        """Return the time of a kernel's arithmetic at the peak, in microseconds."""
        return float(1e3 * kernel["mflop"] / kernel["peak"] / self.attained)

    def bound(self, kernel: Kernel) -> float:
        """Return the lower bound of a kernel's time, in microseconds."""
        return max(self.arithmetic(kernel), 1.024 * kernel["kib"] / self.gbs)


def section(record: Mapping[str, Any]) -> list[str]:
    """Write what tuning of the defaults can gain at most; nothing where none is measured."""
    models = {
        name: [dict(zip(FIELDS, row, strict=True)) for row in one["kernels"]]
        for name, one in record.items()
        if isinstance(one, Mapping) and "kernels" in one
    }
    if not models:
        return []
    rates = Rates([k for kernels in models.values() for k in kernels])
    where = record["environment"]
    lines = [
        f"From `bounds.json.xz` by `python -m benchmarks.tuning.bounds`: {where['cpu']},",
        f"{where['date'][:10]}. Kernels of the defaults, each alone on one thread (ms of processor",
        "time; minima, level-2 caches evicted), and a bound of each: its operations at the highest",
        "rate or its bytes at the highest bandwidth of any kernel here, whichever takes longer.",
        "Products with padding count nothing, exponentials 16. Clocks vary: a rate is a share of",
        "the multiply-adds in registers that were measured beside the kernel; the highest is",
        f"{rates.attained:.0%}, the bandwidth {rates.gbs:.0f} GB/s. *Tasks*: share of kernels that",
        "have a design space. *At most*: what tuning gains if it brings every kernel to its bound.",
        "*Whole*: least ms of the model, by one thread in processor time, by all in wall-clock",
        "time, where waiting for threads counts, and whatever else the machine did (*load*).",
        "*Over bound*: the latter over the bound divided evenly among the threads.",
    ]
    below = [
        f"The {SHOWN} kernels of each model that are farthest from their bounds, and what it would",
        "gain if all their calls were at these:",
    ]
    gaps = [row for name, found in models.items() for row in _gaps(name, found, rates)]
    return [
        "",
        "## What any tuning can gain at most",
        "",
        *textwrap.wrap(" ".join(lines), 96),
        "",
        *table(MODELS, _models(models, record, rates)),
        "",
        *textwrap.wrap(" ".join(below), 96),
        "",
        *table(KERNELS, gaps),
    ]


def _models(
    models: Mapping[str, Sequence[Kernel]], record: Mapping[str, Any], rates: Rates
) -> Iterator[list[str]]:
    most, over = [], []
    for name, kernels in models.items():
        us = sum(k["calls"] * k["us"] for k in kernels)
        tasks = sum(k["calls"] * k["us"] for k in kernels if k["configs"] > 1)
        arithmetic = sum(k["calls"] * rates.arithmetic(k) for k in kernels)
        least = sum(k["calls"] * rates.bound(k) for k in kernels)
        most.append(us / least)
        whole = dict(record[name]["whole_ms"])
        one = whole.pop("1")
        cells = ["", ""]
        for threads, ms in whole.items():
            over.append(1e3 * ms * int(threads) / least)
            cells = [f"{ms:.2f} by {threads}", f"{over[-1]:.2f}"]
        yield [
            name,
            str(sum(k["calls"] for k in kernels)),
            f"{us / 1e3:.2f}",
            f"{tasks / us:.1%}",
            f"{arithmetic / 1e3:.2f}",
            f"{least / 1e3:.2f}",
            f"{least / us:.0%}",
            f"{most[-1]:.2f}",
            f"{one:.2f}",
            *cells,
            str(record[name]["load"]),
        ]
    means = [f"**{geometric_mean(found):.2f}**" if found else "" for found in (most, over)]
    yield ["**geometric mean**", *[""] * 6, means[0], "", "", means[1], ""]


def _gaps(name: str, kernels: Sequence[Kernel], rates: Rates) -> Iterator[list[str]]:
    us = sum(k["calls"] * k["us"] for k in kernels)
    gaps = [k["calls"] * (k["us"] - rates.bound(k)) for k in kernels]
    for i in sorted(range(len(kernels)), key=lambda i: -gaps[i])[:SHOWN]:
        k = kernels[i]
        times = [f"{k['us']:.1f}", f"{rates.bound(k):.1f}", f"{gaps[i] / us:.1%}"]
        yield [name, k["title"], k["template"], str(k["calls"]), str(k["configs"]), *times]
