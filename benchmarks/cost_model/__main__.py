"""The command line: measure groups, fit the cost model, write its coefficients and the tables."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.markdown import table
from benchmarks.records import load_tables, store_tables, text

HERE = Path(__file__).parent
SAMPLES = HERE / "results" / "samples.json.xz"
# Kernels of bfloat16 are those of float16 with other instructions of the same rates; float32 lies
# between kernels of models of half types.
COUNTED_DTYPES = ("float16", "bfloat16", "float32")
MODELS = "alternatives of whole models' groups; benchmarks.prices"
COEFFICIENTS = HERE.parents[1] / "tvm_fusion" / "fusion" / "coefficients.json"


def main() -> int:
    """Measure what is asked for, fit, render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_model", description=__doc__)
    parser.add_argument(
        "--models", nargs="*", default=(), metavar="NAME", help="measure on this CPU"
    )
    parser.add_argument("--h200", action="store_true", help="take the kernels of benchmarks.gpu")
    parser.add_argument(
        "--counted", action="store_true", help="fit those of AMD GPUs alone; others stay"
    )
    parser.add_argument(
        "--threads", action="store_true", help="fit CPUs of several threads alone; others stay"
    )
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = "1"
    data = load()
    if options.models:
        _measure(data, options.models)
    if options.h200:
        _take(data)
    data |= counted() | cpus_of_models()
    from tvm_fusion.fusion.features import NAMES

    known = json.loads(COEFFICIENTS.read_text())["devices"]
    is_partial = options.counted or options.threads

    def stays(device: Mapping[str, Any]) -> bool:
        is_chosen = options.counted and device.get("counted")
        return not (is_chosen or (options.threads and "threads" in device["device"]))

    devices = [
        next(one for one in known if _is_of(one, device))
        if is_partial and stays(device)
        else _fitted(device)
        for device in data.values()
    ]
    COEFFICIENTS.write_text(text({"features": NAMES, "devices": devices}))
    (HERE / "README.md").write_text(render(data))
    return 0


def _is_of(one: Mapping[str, Any], device: Mapping[str, Any]) -> bool:
    own = {"threads": 1, **device["device"]}
    return all(one.get(key, 1) == value for key, value in own.items())


def counted() -> dict[str, Any]:
    """Return AMD GPUs with the rows that were counted in their kernels' machine code."""
    from benchmarks.amd_clocks.record import load as load_counts

    return {
        f"{arch}, no device": {
            **{key: one[key] for key in ("device", "method", "date")},
            "counted": True,
            "dtypes": list(COUNTED_DTYPES),
            "products": list(COUNTED_DTYPES[:2]),
            "rows": [row for row in one["rows"] if "error" not in row],
        }
        for arch, one in load_counts().items()
    }


def cpus_of_models() -> dict[str, Any]:
    """Return CPUs whose kernels :mod:`benchmarks.prices` has timed at several threads."""
    from benchmarks.prices.results import device_of
    from benchmarks.prices.results import load as load_prices

    found = {}
    for target, one in load_prices().items():
        kind, arch, name, threads = device_of(target)
        if kind == "llvm":
            found[target] = {
                "device": {"kind": kind, "arch": arch, "name": name, "threads": threads},
                "dtypes": ["float32"],
                "method": f"{threads} threads, the least of calls in turns",
                "date": one["date"],
                "rows": [],
            }
    return found


def _measure(data: dict[str, Any], models: Sequence[str]) -> None:
    from tvm_fusion.device import parse

    from .sample import samples

    device = parse("cpu").device
    here = data.setdefault(device.name + " " + device.arch, {})
    here |= {
        "device": {"kind": device.kind, "arch": device.arch, "name": device.name},
        "dtypes": ["float32"],
        "method": "one thread, its processor time, minima, caches of level 2 evicted; "
        "benchmarks.cost_model",
        "date": date.today().isoformat(),
    }
    rows = [row for row in here.get("rows", []) if row["model"] not in models]
    known: set[Any] = set()
    for name in models:
        for row in samples(name, known):
            if "error" not in row:
                rows.append(row)
            print(row, file=sys.stderr, flush=True)
        here["rows"] = rows
        store_tables(SAMPLES, data)


def _take(data: dict[str, Any]) -> None:
    from tvm_fusion.device import parse

    from .h200 import DTYPES, samples

    device = parse("cuda:sm_90a").device
    data["H200"] = {
        "device": {"kind": device.kind, "arch": device.arch, "name": ""},  # any board of it
        "dtypes": [*DTYPES, "float32"],  # between kernels of models of half types
        "products": list(DTYPES),
        "method": "one NVIDIA H200, CUDA graphs, operands not in caches; benchmarks.gpu",
        "date": date.today().isoformat(),
        "rows": list(samples()),
    }
    store_tables(SAMPLES, data)


def _fitted(device: Mapping[str, Any]) -> dict[str, Any]:
    from benchmarks.prices.results import FIT, JUDGE

    from .fit import fit, left_out, predicted, rank_correlation

    rows = [*device["rows"], *_of_models(device, FIT)]
    judged = _of_models(device, JUDGE)
    coefficients = fit(rows, _least(device))
    if judged:
        others = [predicted(row, coefficients) for row in judged]
    else:
        judged, others = rows, left_out(rows, _least(device))
    others_of = _of_models(device, FIT) and f"; {MODELS}"
    provenance = {
        "date": device["date"],
        "method": device["method"] + (others_of or ""),
        "kernels": len(device["rows"]),
        "alternatives": len(rows) - len(device["rows"]),
        "judged": len(judged),
        "median_error": round(median(_errors(judged, others)), 3),
        "rank_correlation": round(rank_correlation(others, [row["us"] for row in judged]), 3),
    }
    if device.get("counted"):
        provenance["counted"] = True
    return {
        **device["device"],
        "dtypes": device["dtypes"],
        "products": device.get("products", device["dtypes"]),
        "provenance": provenance,
        "coefficients": coefficients,
    }


def _least(device: Mapping[str, Any]) -> Any:
    """Return what features of a GPU cost at least; no CPU's rates are known."""
    from . import amd, h200

    own = device["device"]
    if own["kind"] == "rocm":
        return partial(amd.least, own["arch"])
    return h200.least if own["kind"] == "cuda" else None


def _of_models(device: Mapping[str, Any], half: str) -> list[dict[str, Any]]:
    """List a half of the alternatives that :mod:`benchmarks.prices` has measured."""
    from benchmarks.prices.results import samples

    own = device["device"]
    if own["kind"] == "cuda":
        return samples(f"cuda:{own['arch']}", half)
    threads = own.get("threads", 1)
    return samples(f"cpu:{own['arch']}, {threads} threads", half) if threads > 1 else []


def _errors(rows: Sequence[Mapping[str, Any]], us: Sequence[float]) -> list[float]:
    return [abs(one / row["us"] - 1) for row, one in zip(rows, us, strict=True)]


def render(data: Mapping[str, Any]) -> str:
    """Write the page."""
    from .fit import left_out, rank_correlation

    lines = [
        "# The cost model against measured kernels",
        "",
        "Generated by `python -m benchmarks.cost_model`; edits are lost. For CPUs the roofline "
        "model ranks alternatives while planning and the fitted one predicts (explain's "
        "microseconds); for measured GPUs the fitted one does both, and for AMD's, of which no "
        'device was there: their "measured" times are those of a model of their machine code\'s '
        "clocks, counted in an interpreter ([benchmarks.amd_clocks](../amd_clocks)). "
        "It is fitted to half of the alternatives of [benchmarks.prices](../prices), "
        "too, which are not in the "
        "tables here. Errors "
        "are medians of |predicted / measured - 1|; of the fitted model for kernels that were "
        "left out of the fit (five folds). Rank correlation is Spearman's.",
    ]
    for name, device in data.items():
        rows = device["rows"]
        if not rows:  # those of models are on the page of benchmarks.prices
            continue
        others = left_out(rows, _least(device))
        lines += ["", f"## {name}", "", f"{device['method']}, {device['date']}", ""]
        body = []
        for template in ("", *sorted({row["template"] for row in rows})):
            chosen = [i for i, row in enumerate(rows) if template in ("", row["template"])]
            own, held = [rows[i] for i in chosen], [others[i] for i in chosen]
            body.append(
                [
                    template or "all",
                    str(len(own)),
                    f"{median(_errors(own, [row['roofline_us'] for row in own])):.2f}",
                    f"{median(_errors(own, held)):.2f}",
                    f"{rank_correlation(held, [row['us'] for row in own]):.3f}"
                    if len(own) > 2
                    else "",
                ]
            )
        head = ("template", "kernels", "roofline's error", "fitted error", "rank correlation")
        lines += table(head, body)
        if any(row["calls"] > 1 for row in rows):
            lines += ["", *_models(rows, others)]
    return "\n".join([*lines, ""])


def _models(rows: Sequence[Mapping[str, Any]], others: Sequence[float]) -> list[str]:
    """Add up the distinct kernels of each model: what is shared counts for the first."""
    body = []
    for name in dict.fromkeys(row["model"] for row in rows):
        chosen = [i for i, row in enumerate(rows) if row["model"] == name]
        sums = [
            sum(rows[i]["calls"] * us for i, us in zip(chosen, column, strict=True)) / 1e3
            for column in (
                [rows[i]["us"] for i in chosen],
                [rows[i]["roofline_us"] for i in chosen],
                [others[i] for i in chosen],
            )
        ]
        body.append([name, *(f"{ms:.1f}" for ms in sums)])
    return table(("kernels of", "measured ms", "roofline ms", "fitted ms"), body)


def load() -> dict[str, Any]:
    """Return how each device was measured, and its rows."""
    return load_tables(SAMPLES)


if __name__ == "__main__":
    sys.exit(main())
