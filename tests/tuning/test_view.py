"""What is shown: a table on a terminal, lines elsewhere."""

import io
import re
from types import SimpleNamespace

from rich.console import Console

from tvm_fusion.core.progress import report
from tvm_fusion.tuning.state import State, TaskState
from tvm_fusion.tuning.view import duration, headline, view

SEARCH = SimpleNamespace(is_over=False)


def state():
    tasks = [
        TaskState(SimpleNamespace(title="matmul [8x8]", calls=2), SEARCH, 900.0, 7, 1, 0.5),
        TaskState(SimpleNamespace(title="conv2d", calls=1), SEARCH, 200.0, 3),
    ]
    return State(tasks, "tuning", "1:30 left")


def test_headline():
    assert headline(state()) == (
        "tuning: 2 tasks, 10 trials, 2.00 ms -> 1.10 ms (1.818x), 1:30 left"
    )
    assert headline(State()) == "planning"
    assert duration(12.34) == "12.3 us"


def test_lines_are_few():
    text = io.StringIO()
    with view(Console(file=text, width=200)) as progress:
        for _ in range(50):
            progress(state())
        done = state()
        done.stage = "done"
        progress(done)
    assert [line.partition(":")[0] for line in text.getvalue().splitlines()] == ["tuning", "done"]


def test_a_table_on_a_terminal():
    text = io.StringIO()
    with view(Console(file=text, width=120, force_terminal=True)) as progress:
        progress(state())
    assert "matmul [8x8]" in text.getvalue()
    assert "2.000x" in text.getvalue()


def test_a_narrow_terminal_cuts_names_and_not_figures():
    text = io.StringIO()
    console = Console(file=text, width=80, height=24, force_terminal=True, no_color=True)
    many = state()
    many.tasks[0].task.title = "conv2d + add + relu + " * 8
    many.tasks *= 20
    with view(console) as progress:
        progress(many)
        report("rewriting")
    for words in ("default us", "450.0", "2.000x", "conv2d + add", "28 more", "rewriting"):
        assert words in text.getvalue()
    assert (
        max(len(line) for line in re.sub(r"\x1b.[^A-Za-z]*[A-Za-z]", "", text.getvalue()).split())
        <= 80
    )


def test_a_terminal_without_a_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    text = io.StringIO()
    with view(Console(file=text, width=200, force_terminal=True)) as progress:
        progress(state())
    assert text.getvalue() == f"{headline(state())}\n"


def test_nothing_if_quiet():
    text = io.StringIO()
    with view(Console(file=text, force_terminal=True), quiet=True) as progress:
        progress(state())
    assert text.getvalue() == ""
