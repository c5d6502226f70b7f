"""An explanation for a reader: tables, in which equal groups and equal refusals are one row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...layout.record import KERNEL
from ...rewrite.egraph.changes import Change
from ...words import counted, few
from .parts import Edge, Group, Member
from .rewriting import Rewriting

if TYPE_CHECKING:
    from ...core.decisions import Decision
    from .result import Explanation

_SHOWN = 3  # variables of equal groups, views and the like that are named one by one
_LONG = 6  # members of a group from which on its title names a few and counts the rest

T = TypeVar("T")


def show(explanation: Explanation, console: Console) -> None:
    """Print an explanation; long sentences are wrapped to the console's width."""
    console.print(_headline(explanation), soft_wrap=True)
    for caveat in explanation.counts.caveats:
        console.print(f"  {caveat}", style="yellow", markup=False, soft_wrap=True)
    if explanation.rewriting is not None:
        show_rewriting(explanation.rewriting, console)
        return
    if explanation.about:
        console.print(f"[bold]{escape(explanation.about)}[/] is in:", soft_wrap=True)
    for sentence, count in Counter(d.sentence for d in explanation.workers).items():
        times = f"{count} x " if count > 1 else ""
        console.print(f"{times}{sentence}", markup=False, highlight=False, soft_wrap=True)
    if explanation.groups:
        console.print(_groups(explanation.groups, bool(explanation.about)), soft_wrap=False)
    weighed = [group for group in explanation.groups if group.templates]
    for equal in _rows(weighed, lambda group: (group.title, group.templates, group.forms)):
        console.print(_templates(equal), soft_wrap=False)
        if equal[0].forms:
            console.print(_forms(equal), soft_wrap=False)
    if explanation.refused:
        console.print(_refused(explanation.refused), soft_wrap=False)
    _list("Views, which need no kernel", explanation.views, console)
    _list("Opaque, never fused", explanation.opaque, console)
    if explanation.layouts:
        _layouts(explanation.layouts, console)
    for decision in explanation.tuned:
        text = f"Tuned: {decision.producer}, {decision.measured_us:.1f} us, {decision.sentence}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for sentence, count in Counter(d.sentence for d in explanation.measured).items():
        times = f"{count} x " if count > 1 else ""
        console.print(f"Fused: {times}{sentence}", markup=False, highlight=False, soft_wrap=True)
    for decision in explanation.fallbacks:
        text = f"{decision.producer}: {decision.sentence}"
        console.print(text, style="yellow", markup=False, soft_wrap=True)
    if explanation.assumed_dim is not None:
        console.print(
            f"Estimates assume {explanation.assumed_dim} for every symbolic dimension; kernels "
            "and bytes are counted at the upper ends of their ranges.",
            soft_wrap=True,
        )


def _headline(explanation: Explanation) -> str:
    counts, stock = explanation.counts, explanation.stock
    kernels, memory = counted(counts.kernels, "kernel"), _megabytes(counts.intermediate_bytes)
    if stock is not None:
        kernels += f" (stock TVM {stock.kernels})"
        memory += f" (stock TVM {_megabytes(stock.intermediate_bytes)})"
    origin = f"; stock TVM after {explanation.stock_from}" if stock is not None else ""
    return (
        f"[bold]{escape(explanation.source)}[/] for {escape(explanation.target)}: "
        f"{kernels}, {memory} of intermediate tensors{origin}"
    )


def _groups(groups: tuple[Group, ...], in_full: bool) -> Table:
    table = _table("Groups", "operators")
    table.columns[1].ratio = 1
    for name in ("kernels", "MB", "MFLOP", "us"):
        table.add_column(name, justify="right", no_wrap=True)
    key = _same if in_full else _alike
    for equal in _rows(groups, key):
        measured = all(group.source == "measured" for group in equal)
        table.add_row(
            _times(equal),
            _in_full(equal) if in_full else _in_short(equal),
            str(sum(g.launches for g in equal)),
            f"{sum(g.bytes for g in equal) / 1e6:.2f}",
            f"{sum(g.flops for g in equal) / 1e6:.1f}",
            ("" if measured else "~") + f"{sum(g.us for g in equal):.0f}",
        )
    if any(group.source != "measured" for group in groups):
        models = sorted({group.source for group in groups} - {"measured"})
        table.caption = (
            "MB, MFLOP and us are estimates for all groups of a row; ~: by the "
            f"{' or '.join(models)} model, not measured"
        )
    return table


def _in_short(equal: list[Group]) -> str:
    titles = [member.title for member in equal[0].members]
    if len(titles) > _LONG:
        titles = [*titles[: _LONG - 2], f"{len(titles) - _LONG + 1} more", titles[-1]]
    named = _named(map(_range, equal))
    return f"{escape(' + '.join(titles))}\n[dim]{_made(equal)}: {escape(named)}[/]"


def _in_full(equal: list[Group]) -> str:
    one = equal[0]
    lines = [_line(member) for member in one.members]
    others = [f"[dim]also {escape(_named(map(_range, equal[1:])))}[/]"] if equal[1:] else []
    return "\n".join([*lines, f"[dim]{_made(equal)}[/]", *others])


def _line(member: Member) -> str:
    named = "" if member.names in ((), (member.variable,)) else f" {few(member.names)}"
    return f"{member.variable} = {member.title} [dim]({member.type}){escape(named)}[/]"


def _made(equal: list[Group]) -> str:
    one = equal[0]
    arithmetic = f", {one.arithmetic}" if one.arithmetic else ""
    price = f"{one.source}: {one.most}" if one.most and len(equal) == 1 else one.source
    return f"{one.type}, by {escape(one.template)}{escape(arithmetic)}; price {price}"


def _templates(equal: list[Group]) -> Table:
    """List what templates answered for equal groups."""
    table = _choice("Templates for", equal, "template")
    table.add_column("us", justify="right", no_wrap=True)
    table.add_column("why not", overflow="fold", ratio=1)
    for answer in equal[0].templates:
        us = "" if answer.us is None else f"~{answer.us:.1f}"
        mark = "*" if answer.is_chosen else ""
        table.add_row(mark, answer.template, us, escape(answer.sentence))
    table.caption = "*: chosen; ~: estimated"
    return table


def _choice(title: str, equal: list[Group], subject: str) -> Table:
    """Begin the table of a choice that was made for equal groups."""
    named = escape(_named(map(_range, equal)))
    return _table(f"{title} {escape(equal[0].title)} [dim]({named})[/]", subject)


def _forms(equal: list[Group]) -> Table:
    """List the forms of kernels that a template weighed for equal groups."""
    table = _choice("Forms of", equal, "form")
    table.add_column("kernel", no_wrap=True)
    table.add_column("1,000 clocks", justify="right", no_wrap=True)
    table.add_column("why not", overflow="fold", ratio=1)
    for form in equal[0].forms:
        clocks = "" if form.clocks is None else f"{form.clocks / 1e3:.1f}"
        mark = "*" if form.is_chosen else ""
        table.add_row(mark, form.name, escape(form.kernel), clocks, escape(form.sentence))
    table.caption = "*: chosen; estimated clocks of a multiprocessor, copies of operands included"
    return table


def _range(group: Group) -> str:
    """Name a group by its first and its last operator, as the user calls them."""
    members, names = group.members, group.names
    if len(names) == 1 or len(members) == 1:
        return members[0].label
    first, last = members[0].names, members[-1].names
    return f"{(first or [members[0].variable])[0]}..{(last or [members[-1].variable])[-1]}"


def _refused(edges: tuple[Edge, ...]) -> Table:
    table = _table("Not fused", "edge")
    table.columns[1].ratio = 2
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=3)
    for equal in _rows(edges, lambda e: (_titles(e), e.classes, e.code, e.sentence)):
        one = equal[0]
        ends = _named(f"{e.producer.label} -> {e.consumer.label}" for e in equal)
        table.add_row(
            _times(equal),
            f"{escape(_titles(one))}\n[dim]{escape(ends)}[/]",
            f"{sum(e.bytes for e in equal) / 1e6:.2f}",
            f"[bold]{escape(one.code)}[/] ({' -> '.join(one.classes)}): {escape(one.sentence)}",
        )
    table.caption = "In parentheses: the mapping types of the two groups"
    if any("(roofline" in edge.sentence for edge in edges):
        table.caption += (
            "\nroofline: a model that ranks alternatives; its times are not predictions"
        )
    return table


def _titles(edge: Edge) -> str:
    """Name an edge's ends, and the views between them in parentheses."""
    views = [f"({view.title})" for view in edge.through]
    return " -> ".join([edge.producer.title, *views, edge.consumer.title])


def _list(title: str, members: tuple[Member, ...], console: Console) -> None:
    if not members:
        return
    parts = [
        f"{equal[0].title} ({_named(member.label for member in equal)})"
        for equal in _rows(members, lambda member: member.title)
    ]
    console.print(f"{title}: {'; '.join(parts)}", markup=False, soft_wrap=False)


def _layouts(decisions: tuple[Decision, ...], console: Console) -> None:
    """Print the layouts of edges, those alike in one line, and every layout kernel."""
    edges = [d for d in decisions if d.consumer]
    for equal in _rows(edges, lambda d: d.sentence):
        named = _named(f"{d.producer_label} -> {d.consumer_label}" for d in equal)
        text = f"{equal[0].sentence} {counted(len(equal), 'edge')}: {named}"
        console.print(text, markup=False, soft_wrap=True)
    for decision in decisions:
        if not decision.consumer:
            style = "yellow" if decision.code == KERNEL else None
            console.print(decision.sentence, style=style, markup=False, soft_wrap=True)


def _table(title: str, subject: str) -> Table:
    """Begin a table with how many rows one stands for, and what it is about."""
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column(subject, overflow="fold")
    return table


def _alike(group: Group) -> Hashable:
    """Tell groups of the same operators by the same template, of whatever sizes."""
    members = tuple((m.title, m.type) for m in group.members)
    return members, group.type, group.template, group.arithmetic


def _same(group: Group) -> Hashable:
    """Tell groups that are equal in every figure, too."""
    return _alike(group), group.launches, group.bytes, group.flops, group.us, group.source


def _rows(entries: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    found: dict[Hashable, list[T]] = {}
    for entry in entries:
        found.setdefault(key(entry), []).append(entry)
    return list(found.values())


def _named(names: Iterable[str]) -> str:
    """Name a few and count the rest."""
    names = list(names)
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _times(equal: list) -> str:
    return f"{len(equal)} x" if len(equal) > 1 else ""


def _megabytes(number: int) -> str:
    return f"{number / 1e6:.1f} MB"


# Rewriting for a reader: equal changes are one row, and each rule has its figures.
_LONG_EXPRESSION = 240  # characters of an expression


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
    table = _titled("Rewritten")
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
    names = [change.label for change in same if change.label]
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
    table = _titled("Rules")
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
    return text if len(text) <= _LONG_EXPRESSION else f"{text[:_LONG_EXPRESSION]} ..."


def _titled(title: str) -> Table:
    return Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
