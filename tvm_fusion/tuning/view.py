"""What a user sees while tuning: a table that is drawn anew on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..core.progress import Stage, listening
from ..report.progress import progress_line
from ..words import counted
from .state import State

LINE_SECONDS = 10.0  # between two lines
SHOWN = 12  # tasks of the table
_OTHER_LINES = 8  # of what is drawn

Progress = Callable[[State], None]


@contextmanager
def view(console: Console, quiet: bool = False) -> Iterator[Progress]:
    """Show the state of tuning; yields what to call whenever it changes.

    The stages of a compilation that runs meanwhile stand behind the headline.
    """
    if quiet:
        yield lambda state: None
        return
    if not console.is_terminal or console.is_dumb_terminal:
        lines = _Lines(console)
        with listening(lines.stage):
            yield lines.show
        return
    screen = _Screen()
    with (
        Live(screen, console=console, refresh_per_second=2, transient=True),
        listening(screen.stage),
    ):
        yield screen.show


class _Lines:
    """Plain lines: at the beginning of each stage, and every :data:`LINE_SECONDS` at most."""

    def __init__(self, console: Console) -> None:
        self._console, self._state = console, State()
        self._last: tuple[float, str] = (float("-inf"), "")
        self._began = time.monotonic()

    def show(self, state: State) -> None:
        """Take a new state."""
        self._state = state
        now = time.monotonic()
        if state.stage != self._last[1] or now - self._last[0] >= LINE_SECONDS:
            self._print(headline(state))

    def stage(self, stage: Stage) -> None:
        """Take a stage of a compilation."""
        if time.monotonic() - self._last[0] >= LINE_SECONDS:
            line = progress_line(stage, time.monotonic(), self._began)
            self._print(f"{headline(self._state)}; {line}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._last = time.monotonic(), self._state.stage


class _Screen:
    """The table of tasks with a headline below; drawn anew, so that its seconds go on."""

    def __init__(self) -> None:
        self._state, self._stage = State(), Stage("")
        self._began = self._stage_began = time.monotonic()

    def show(self, state: State) -> None:
        """Take a new state."""
        self._state, self._stage = state, Stage("")

    def stage(self, stage: Stage) -> None:
        """Take a stage of a compilation."""
        if stage.name != self._stage.name:
            self._stage_began = time.monotonic()
        self._stage = stage

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many tasks as there is room for."""
        if self._state.tasks:
            yield _table(self._state, max(1, min(SHOWN, console.height - _OTHER_LINES)))
        lines = [headline(self._state)]
        if self._stage.name:
            lines.append(progress_line(self._stage, self._stage_began, self._began))
        for line in lines:
            yield Text(line, no_wrap=True, overflow="ellipsis")


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


def _table(state: State, rows: int) -> Table:
    """Show the tasks that take most of the time; their names get the width that figures leave."""
    table = Table(box=SIMPLE_HEAD, expand=True)
    table.add_column("task", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("calls", "trials", "failed", "default us", "us", "gain"):
        table.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(state.tasks, key=lambda t: -t.task.calls * t.default_us)
    for one in ordered[:rows]:
        table.add_row(
            Text(one.task.title),
            str(one.task.calls),
            str(one.trials),
            str(one.failed),
            f"{one.default_us:.1f}",
            f"{one.default_us * one.ratio:.1f}",
            f"{1 / one.ratio:.3f}x",
        )
    if ordered[rows:]:
        table.caption = f"{len(ordered) - rows} more"
    return table
