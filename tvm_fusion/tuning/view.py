"""What a user sees while tuning: a table that is drawn anew on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..words import counted
from .state import State

LINE_SECONDS = 10.0  # between two lines
SHOWN = 12  # tasks of the table

Progress = Callable[[State], None]


@contextmanager
def view(console: Console) -> Iterator[Progress]:
    """Show the state of tuning; yields what to call whenever it changes."""
    if not console.is_terminal:
        yield _lines(console)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield lambda state: live.update(_table(state))


def _lines(console: Console) -> Progress:
    last: tuple[float, str] = (float("-inf"), "")

    def show(state: State) -> None:
        nonlocal last
        now = time.monotonic()
        if state.stage != last[1] or now - last[0] >= LINE_SECONDS:
            console.print(headline(state), markup=False, highlight=False, soft_wrap=True)
            last = now, state.stage

    return show


def headline(state: State) -> str:
    """Say in one line how far tuning is."""
    if not state.tasks:
        return state.stage
    return (
        f"{state.stage}: {counted(len(state.tasks), 'task')}, {counted(state.trials, 'trial')}, "
        f"{duration(state.default_us)} -> {duration(state.us)} ({state.gain:.3f}x), "
        f"{state.left}"
    )


def duration(us: float) -> str:
    """Write microseconds as a reader wants them."""
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} us"


def _table(state: State) -> Group:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("task", overflow="ellipsis", no_wrap=True)
    for name in ("calls", "trials", "failed", "default us", "us", "gain"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in sorted(state.tasks, key=lambda t: -t.task.calls * t.default_us)[:SHOWN]:
        table.add_row(
            Text(one.task.title),
            str(one.task.calls),
            str(one.trials),
            str(one.failed),
            f"{one.default_us:.1f}",
            f"{one.default_us * one.ratio:.1f}",
            f"{1 / one.ratio:.3f}x",
        )
    return Group(table, Text(headline(state)))
