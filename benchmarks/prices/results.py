"""The record: each distinct group with its prices and its measured times, by target."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import load_tables, store_tables

RESULT = Path(__file__).parent / "results" / "prices.json.xz"
FIT, JUDGE = "fit", "judge"


def half_of(key: str) -> str:
    """Which half of the groups one is in, by its hash: coefficients are fitted to :data:`FIT`."""
    return FIT if int(key[-1], 16) % 2 else JUDGE


def load() -> dict[str, Any]:
    """Return, by target, how its groups were measured, and a row for each of them."""
    record = load_tables(RESULT)
    for one in record.values():
        kernels = [
            _named(claim, one["features"]) for claim in zip(*one.pop("kernels"), strict=True)
        ]
        for row in one["rows"]:
            row["claims"] = {w: [kernels[i] for i in own] for w, own in row["claims"].items()}
    return record


def _named(claim: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Name the template and the features of a claim, as :mod:`.price` tells them."""
    template, *values = claim
    found = zip(names, values, strict=True)
    return {"template": template, **{name: value for name, value in found if value}}


def _values(claim: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """List a claim's template and features without their names."""
    return (claim["template"], *(claim.get(name, 0) for name in names))


def price(row: dict[str, Any], target: str) -> float:
    """Price a row's group by the coefficients that ship, else as the planner had it."""
    from benchmarks.cost_model.fit import predicted
    from tvm_fusion.fusion.fitted import fits

    fit = fits().get(device_of(target))
    if fit is None or row["source"] != "fitted":
        return float(row.get("planned", row["roofline"]))
    return round(predicted({"claims": row["claims"]["fused"]}, fit.coefficients), 2)


def device_of(target: str) -> tuple[str, str, str, int]:
    """Read the name that the record has for a target, as coefficients are found by.

    Such as ``cuda:sm_90a``, or ``cpu:sapphirerapids, 2 threads``.
    """
    name, _, threads = target.partition(", ")
    kind, _, arch = name.partition(":")
    return {"cpu": "llvm"}.get(kind, kind), arch, "", int(threads.split()[0]) if threads else 1


def samples(target: str, half: str) -> list[dict[str, Any]]:
    """List what coefficients are fitted to or judged by: each alternative's time and claims."""
    rows = load().get(target, {"rows": []})["rows"]
    return [
        {"key": row["key"], "way": way, "us": us, "claims": row["claims"][way]}
        for row in rows
        if half_of(row["key"]) == half and "us" in row
        for way, us in row["us"].items()
        if way not in row["wrong"]
    ]


def store(record: Mapping[str, Any]) -> None:
    """Write the record: the kernels that its alternatives share once, by their number."""
    from tvm_fusion.fusion.features import NAMES

    tables = {}
    for target, one in record.items():
        kernels: dict[tuple[Any, ...], int] = {}
        rows = []
        for row in one["rows"]:
            claims = {
                way: [kernels.setdefault(_values(claim, NAMES), len(kernels)) for claim in own]
                for way, own in row["claims"].items()
            }
            rows.append({**row, "claims": claims})
        about = {"features": list(NAMES), "kernels": [*zip(*kernels, strict=True)]}
        tables[target] = {**one, **about, "rows": rows}
    store_tables(RESULT, tables)


def take(folder: Path, measured: Path, threads: int | None = None) -> None:
    """Put what was measured of a folder into the record; groups that it has are replaced.

    Parameters
    ----------
    folder
        What :func:`~.build.build` has made.
    measured
        What :mod:`.run` has written.
    threads
        Of a CPU, if it was measured at several numbers of them: part of the name in the record.
    """
    from .build import INDEX

    index, found = json.loads((folder / INDEX).read_text()), json.loads(measured.read_text())
    record = load()
    name = index["target"] + (f", {threads} threads" if threads else "")
    one = record.setdefault(name, {"rows": []})
    one |= {"device": found["device"], "date": str(datetime.date.today())}
    rows = {row["key"]: row for row in one["rows"]}
    planned = {model for model, own in index["models"].items() if own}
    for row in rows.values():  # an earlier plan's groups are no longer the model's
        row["calls"] = {m: n for m, n in row["calls"].items() if m not in planned}
    for model in planned:
        for key, count in index["models"][model].items():
            if key in rows:
                rows[key]["calls"][model] = count
    for key, answer in found["rows"].items():
        group = index["groups"][key]
        known = rows.get(key, {}).get("calls", {})
        calls = known | {m: own[key] for m, own in index["models"].items() if key in own}
        row = {"key": key, **{k: group[k] for k in _KEPT}, "calls": calls}
        fused = group["prices"]["fused"]
        row |= {"roofline": fused["roofline_us"], "source": fused["source"]}
        if index["target"].startswith("cpu"):  # its coefficients are of another machine
            row["planned"] = fused["us"]
        row["claims"] = {way: one["claims"] for way, one in group["prices"].items()}
        rows[key] = row | {k: answer[k] for k in ("us", "wrong", "error") if k in answer}
    one["rows"] = [rows[key] for key in sorted(rows) if rows[key]["calls"]]
    store(record)


_KEPT = ("title", "template", "form", "kernel")
