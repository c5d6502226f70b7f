"""Rewriting for a reader: equal changes are one row, and each rule has its figures."""

from __future__ import annotations

from collections import defaultdict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...rewrite.egraph.changes import Change
from .rewriting import Rewriting

_SHOWN = 3  # variables of equal changes that are named one by one
_LONG = 240  # characters of an expression


def show_rewriting(rewriting: Rewriting, console: Console) -> None:
    """Print what was changed, and what became of each rule."""
    if rewriting.changes:
        console.print(_changes(rewriting.changes), soft_wrap=False)
    else:
        console.print("Nothing was rewritten.")
    if rewriting.uses:
        console.print(_uses(rewriting), soft_wrap=False)
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in rewriting.unused.items():
        by_reason[reason].append(name)
    for reason, names in by_reason.items():
        console.print(f"Not tried, {reason}: {', '.join(names)}", markup=False, soft_wrap=False)


def _changes(changes: tuple[Change, ...]) -> Table:
    table = _table("Rewritten")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("before -> after", overflow="fold", ratio=1)
    for name in ("us", "kernels", "MB", "MFLOP"):
        table.add_column(name, justify="right", no_wrap=True)
    equal: dict[tuple, list[Change]] = defaultdict(list)
    for change in changes:
        equal[change.rules, change.before, change.after, change.is_replayed].append(change)
    for same in sorted(equal.values(), key=lambda same: -sum(_us(change) for change in same)):
        table.add_row(f"{len(same)} x" if len(same) > 1 else "", _told(same), *_gains(same))
    table.caption = (
        "Saved, by the planner's estimate of each region alone; -: not estimated. Small letters"
        " are tensors, capitals constants."
    )
    return table


def _told(same: list[Change]) -> str:
    one = same[0]
    by = ", ".join(one.rules) or "equal operators merged"
    names = [change.variable for change in same if change.variable]
    where = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        where += f" and {len(names) - _SHOWN} more"
    perhaps = "" if one.is_replayed else " [dim](and perhaps others)[/]"
    return (
        f"{escape(_short(one.before))}\n-> {escape(_short(one.after))}\n"
        f"[bold]{escape(by)}[/]{perhaps}" + (f" [dim]in {escape(where)}[/]" if where else "")
    )


def _gains(same: list[Change]) -> list[str]:
    gains = [change.gain for change in same if change.gain is not None]
    if not gains:
        return ["-"] * 4
    return [
        f"{sum(gain.us for gain in gains):.3g}",
        str(sum(gain.kernels for gain in gains)),
        f"{sum(gain.bytes for gain in gains) / 1e6:.3g}",
        f"{sum(gain.flops for gain in gains) / 1e6:.3g}",
    ]


def _us(change: Change) -> float:
    return 0.0 if change.gain is None else change.gain.us


def _uses(rewriting: Rewriting) -> Table:
    table = _table("Rules")
    table.add_column("rule", overflow="fold")
    for name in ("tried", "fired", "chosen", "us"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("refused", overflow="fold", ratio=1)
    order = sorted(rewriting.uses.items(), key=lambda item: (-item[1].gain_us, item[0]))
    for name, use in order:
        refused = [f"{count} x {sentence}" for sentence, count in use.refused.most_common()]
        table.add_row(
            escape(name),
            str(use.tried),
            str(use.fired),
            str(use.chosen),
            f"{use.gain_us:.3g}",
            escape("\n".join(refused)),
        )
    table.caption = (
        "Tried: matches of its left side; fired: matches that added something new; chosen: changes"
        " that need it, which share their gain. A region equal to an earlier"
        " one is not searched again; it counts under chosen only."
    )
    return table


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]} ..."


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
