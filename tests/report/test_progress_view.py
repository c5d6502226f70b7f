"""What a user sees of progress: on a terminal, in a pipe, or nothing. Times are waited for."""

import os
import pty
import re

import pytest

import tvm_fusion
from tvm_fusion.core.progress import report, steps
from tvm_fusion.report import progress as module


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.001)
    monkeypatch.setattr(module, "LINE_SECONDS", 0.001)
    monkeypatch.setattr(module, "_FRAME_SECONDS", 0.001)


def read_until(descriptor, words):
    """Read until words have come; the end of the file is a failure."""
    text = ""
    while words not in text:
        part = os.read(descriptor, 1 << 16).decode()
        assert part, text
        text += part
    return text


def shown(kind, monkeypatch, **environment):
    """What is shown of three stages, until each has been seen, and what follows at the end."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    reading, writing = pty.openpty() if kind == "terminal" else os.pipe()
    seen = ""
    with open(writing, "w", buffering=1) as file, tvm_fusion.progress(file):
        report("importing")
        seen += read_until(reading, "importing")
        for number in steps("fusing", range(8)):
            if number in (2, 5):
                seen += read_until(reading, f"fusing {number} of 8")
        report("writing")
        seen += read_until(reading, "writing")
    try:
        while part := os.read(reading, 1 << 16):
            seen += part.decode()
    except OSError:  # how a terminal ends
        pass
    os.close(reading)
    return seen


def test_a_terminal_has_one_line_that_goes(monkeypatch):
    text = shown("terminal", monkeypatch, TERM="xterm-256color")
    assert text.startswith("\x1b[?25l")  # the cursor is hidden meanwhile
    line, _, end = text.partition("\r\n")
    assert line.rindex("\x1b[2K") > line.rindex("fusing")
    assert end.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")
    assert "writing" not in end


def test_no_color(monkeypatch):
    text = shown("terminal", monkeypatch, TERM="xterm-256color", NO_COLOR="1")
    assert not re.search("\x1b\\[[0-9;]*[1-9][0-9;]*m", text)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_plain_lines_elsewhere(monkeypatch, kind):
    """In a pipe, and on a terminal that can move no cursor."""
    text = shown(kind, monkeypatch, TERM="dumb")
    assert "\x1b" not in text
    lines = text.split()
    assert {"importing,", "fusing", "writing,"} <= set(lines)
    for line in text.splitlines():
        assert re.fullmatch(r"\w+( \d of 8)?, \d+ s(, about \d+ s left)?", line)


def test_time_left(monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", lambda: 130.0)
    line = module.progress_line
    assert line(module.Stage("fusing", 4, 20), 120.0, 100.0) == (
        "fusing 4 of 20, 30 s, about 40 s left"
    )
    assert line(module.Stage("fusing", 2, 20), 120.0, 100.0) == "fusing 2 of 20, 30 s"
    assert line(module.Stage("fusing", 20, 20), 120.0, 100.0) == "fusing 20 of 20, 30 s"
    assert line(module.Stage("importing"), 120.0, 100.0) == "importing, 30 s"


def test_nothing_if_quiet_or_soon_over(monkeypatch, capfd):
    with tvm_fusion.progress(quiet=True):
        report("importing")
    monkeypatch.setattr(module, "PATIENCE", 1e6)
    with tvm_fusion.progress():
        report("importing")
    assert capfd.readouterr() == ("", "")


def test_nothing_before_the_first_stage(monkeypatch, capfd):
    asked = []
    monkeypatch.setattr(
        module._Shown, "line", lambda self, line=module._Shown.line: asked.append(1) or line(self)
    )
    with tvm_fusion.progress():
        while len(asked) < 3:
            pass
    assert capfd.readouterr() == ("", "")
