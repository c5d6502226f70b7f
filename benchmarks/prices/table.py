"""The page: errors of prices by template and form, the worst groups, regret by model."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.markdown import table

from .results import JUDGE, half_of, load, price

FUSED = "fused"
LEAST_US = 3.0  # of a group whose error counts
WORST = 12
REGRET = 0.0005  # of a model that is listed
_WIDTH = 70  # of a title
Row = Mapping[str, Any]


def page() -> str:
    """Write the page of the record, as the site has it."""
    record = load()
    for target, one in record.items():
        for row in one["rows"]:
            row["price"] = price(row, target)
    return render(record)


def render(record: Mapping[str, Any]) -> str:
    """Write the page."""
    lines = [
        "# Prices of fused groups against what they take",
        "",
        "By `python -m benchmarks.prices`. Every distinct group of the "
        "models' plans, with its alternatives (its parts one by one, and its heaviest operator "
        "without what is fused before or behind it), timed in turns where the device is: medians, "
        "last-level cache written through before, weights not in caches. Two layers of each kind "
        "stand for a model.",
        "",
        "Coefficients of the models of cost are fitted to one half of the groups, by their hash; "
        f'the other half ("{JUDGE}") judges.',
    ]
    for target, one in record.items():
        rows = [row for row in one["rows"] if "us" in row]
        lines += ["", f"## {target}", ""]
        lines.append(
            f"{one['device']}, {one['date']}: {len(rows)} groups of {len(models_of(rows))} models, "
            f"{len(one['rows']) - len(rows)} failed; {sum(bool(r['wrong']) for r in rows)} with "
            "alternatives of other results."
        )
        lines += ["", *_errors(rows), "", "### Most microseconds lost", "", *_worst(rows)]
        lines += ["", "### Regret by model", "", *_regrets(rows)]
    return "\n".join([*lines, ""])


def models_of(rows: Iterable[Row]) -> list[str]:
    """List the models that the groups are of."""
    return list(dict.fromkeys(model for row in rows for model in row["calls"]))


def ratio(row: Row, of: str = "price") -> float:
    """Divide the price of a group by its time."""
    return float(row[of] / row["us"][FUSED])


def within(ratios: Sequence[float], factor: float) -> str:
    """Tell how many are within a factor of 1, in percent."""
    count = sum(1 / factor <= one <= factor for one in ratios)
    return f"{100 * count / len(ratios):.0f} %" if ratios else ""


def _errors(rows: Sequence[Row]) -> list[str]:
    large = [row for row in rows if row["us"][FUSED] > LEAST_US]
    judged = [row for row in large if half_of(row["key"]) == JUDGE]
    body = [_error("all", large), _error(f"all, {JUDGE}", judged)]
    kinds = sorted({(row["template"], row.get("form", "")) for row in large})
    for template, form in kinds:
        own = [r for r in large if (r["template"], r.get("form", "")) == (template, form)]
        body.append(_error(f"{template}, {form}" if form else template, own))
    head = (
        *("template, form", f"groups above {LEAST_US:g} us", "median error"),
        *("within 1.5x", "within 2x", "roofline's median error"),
    )
    return table(head, body)


def _error(name: str, rows: Sequence[Row]) -> list[str]:
    ratios = [ratio(row) for row in rows]
    if not ratios:
        return [name, "0", "", "", "", ""]
    errors = [
        median(abs(r - 1) for r in own) for own in (ratios, [ratio(r, "roofline") for r in rows])
    ]
    return [
        *(name, str(len(rows)), f"{100 * errors[0]:.0f} %"),
        *(within(ratios, 1.5), within(ratios, 2.0), f"{100 * errors[1]:.0f} %"),
    ]


def lost(row: Row) -> float:
    """Microseconds by which the price of a group is off, of one call."""
    return float(abs(row["price"] - row["us"][FUSED]))


def _worst(rows: Sequence[Row]) -> list[str]:
    """List the groups whose prices are furthest off."""
    body = []
    for row in sorted(rows, key=lost, reverse=True)[:WORST]:
        us = row["us"]
        others = ", ".join(f"{name} {us[name]:.1f}" for name in us if name != FUSED)
        body.append(
            [
                _short(row["title"]),
                ", ".join(filter(None, (row["template"], row.get("form"), row.get("kernel")))),
                f"{row['price']:.1f} ({row['source']})",
                f"{us[FUSED]:.1f}",
                others,
                ", ".join(row["calls"]),
            ]
        )
    return table(("group", "kernel", "price us", "measured us", "alternatives", "in"), body)


def best(row: Row) -> tuple[str, float]:
    """Name the fastest alternative of a group that gives the same results, and its time."""
    right = {name: us for name, us in row["us"].items() if name not in row["wrong"]}
    return min(right.items(), key=lambda one: one[1])


def _regrets(rows: Sequence[Row]) -> list[str]:
    body = []
    for model in models_of(rows):
        own = [(row, row["calls"][model]) for row in rows if model in row["calls"]]
        plan = sum(row["us"][FUSED] * calls for row, calls in own)
        least = sum(best(row)[1] * calls for row, calls in own)
        worst = max(own, key=lambda one: (one[0]["us"][FUSED] - best(one[0])[1]) * one[1])[0]
        name, us = best(worst)
        told = f"{_short(worst['title'])}: {worst['us'][FUSED]:.1f}, {name} {us:.1f}"
        body.append((plan / least - 1, [model, f"{plan:.0f}", f"{least:.0f}", told]))
    if not body:
        return []
    body.sort(key=lambda one: -one[0])
    share = [one[0] for one in body]
    mean = sum(share) / len(share)
    lines = [
        f"Mean of {len(share)} models {100 * mean:.1f} %, worst {100 * share[0]:.1f} %. Models "
        "that are not listed have none.",
        "",
    ]
    head = ("model", "regret", "plan us", "best us", "group that loses most, us")
    cells = [[row[0], f"{100 * part:.1f} %", *row[1:]] for part, row in body if part >= REGRET]
    return lines + table(head, cells)


def _short(title: str) -> str:
    return title if len(title) <= _WIDTH else title[: _WIDTH - 3] + "..."
