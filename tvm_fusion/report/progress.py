"""Progress on standard error: a line that is drawn anew on a terminal, plain lines elsewhere.

Nothing is shown of what ends within :data:`PATIENCE` seconds. A thread draws, so that time goes on
where a stage has no steps.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from ..core.progress import Stage, listening

PATIENCE = 2.0  # seconds before the first sign
LINE_SECONDS = 5.0  # at least, between two lines
_FRAME_SECONDS = 0.25  # between two drawings on a terminal
_FEWEST = 3  # steps from which on the rest is estimated


@contextmanager
def progress(file: TextIO | None = None, *, quiet: bool = False) -> Iterator[None]:
    """Show the progress of what runs inside of ``with``: compiling, tuning, bundling, checking.

    Without it this package prints nothing. On a terminal one line is drawn anew and goes at the
    end; elsewhere a line is printed every five seconds at most. ``NO_COLOR`` turns colours off.

    Parameters
    ----------
    file : file, optional
        Standard error by default.
    quiet : bool
        Whether to show nothing after all.

    Examples
    --------
    >>> with tvm_fusion.progress():
    ...     artifact = tvm_fusion.compile("model.onnx")
    """
    if quiet:
        yield
        return
    console = Console(file=file or sys.stderr, soft_wrap=True)
    shown = _Shown()
    over = threading.Event()
    draw = _draw if console.is_terminal and not console.is_dumb_terminal else _print_lines
    thread = threading.Thread(target=draw, args=(console, shown, over), daemon=True)
    thread.start()
    try:
        with listening(shown.update):
            yield
    finally:
        over.set()
        thread.join()


class _Shown:
    """The present stage, and when it and the whole began."""

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self._began = self._stage_began = time.monotonic()

    def update(self, stage: Stage) -> None:
        """Take what a stage tells."""
        if self.stage is None or stage.name != self.stage.name:
            self._stage_began = time.monotonic()
        self.stage = stage

    def line(self) -> str:
        """Say how far it is: ``fusing operators 12 of 80, 3 s, about 10 s left``.

        Nothing before the first stage.
        """
        return progress_line(self.stage, self._stage_began, self._began) if self.stage else ""


def progress_line(stage: Stage, stage_began: float, began: float) -> str:
    """Write a stage, its steps, the seconds since the beginning, and the stage's time left.

    Parameters
    ----------
    stage_began, began
        Of the monotonic clock.
    """
    now = time.monotonic()
    text = stage.name + (f" {stage.done} of {stage.total}" if stage.total else "")
    text += f", {now - began:.0f} s"
    if stage.total > stage.done >= _FEWEST:
        left = (now - stage_began) / stage.done * (stage.total - stage.done)
        text += f", about {left:.0f} s left" if left >= 1 else ""
    return text


def _draw(console: Console, shown: _Shown, over: threading.Event) -> None:
    if over.wait(PATIENCE):
        return
    spinner = Spinner("dots")
    with Live(
        spinner, console=console, transient=True, auto_refresh=False,
        redirect_stdout=False, redirect_stderr=False,
    ) as live:  # fmt: skip
        while True:
            if line := shown.line():
                spinner.update(text=Text(line, overflow="ellipsis", no_wrap=True))
                live.refresh()
            if over.wait(_FRAME_SECONDS):
                return


def _print_lines(console: Console, shown: _Shown, over: threading.Event) -> None:
    wait = PATIENCE
    while not over.wait(wait):
        if line := shown.line():
            console.print(line, markup=False, highlight=False)
        wait = LINE_SECONDS
