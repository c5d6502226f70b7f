"""Rows by processes: one that crashes, hangs or comes too late costs its row and is told."""

import time

import pytest

from benchmarks.rows import NO_TIME, answered, measured

PROCESS = """
import sys, time
what, threads, first = sys.argv[1:]
if what == "hangs":
    time.sleep(600)
if what == "crashes":
    raise SystemExit("broken")
print("what a library prints")
print('{"threads": %s, "first": %s}' % (threads, first))
sys.stdout.flush()
if what == "stays":
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "a_row.py").write_text(PROCESS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def rows(*cases, seconds=60.0, left=600.0):
    found = measured("a_row", [(case,) for case in cases], 1, 1, time.monotonic() + left, seconds)
    return {case: row for (case,), row in found}


def test_a_process_that_fails_costs_its_row():
    found = rows("crashes", "right", "stays", seconds=float("inf"), left=float("inf"))
    assert "broken" in found["crashes"]["wrong"]
    assert found["right"] == found["stays"] == {"threads": 1, "first": 0}


def test_what_hangs_is_ended():
    assert rows("hangs", seconds=0.5) == {"hangs": {"wrong": "no answer in 0.5 s"}}


def test_what_time_is_left_for_no_more_is_told():
    assert rows("right", left=-1.0) == {"right": {"wrong": NO_TIME}}
    assert answered("a_row", "right", 1, 0, end=0.0)["wrong"] == NO_TIME
