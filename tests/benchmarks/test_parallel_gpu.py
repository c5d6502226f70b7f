"""Cases on several GPUs: what gets ready in time is told, and what does not."""

import json
import time

import pytest

from benchmarks.parallel import gpu
from benchmarks.parallel.cases import CASES, DEFAULT, Case


class Answers:
    """A process that answers a line, or nothing."""

    def __init__(self, line):
        self._line, self.is_closed = line, False

    def line(self, seconds):
        line, self._line = self._line, None
        return line

    def ended(self):
        return "the process ended with 1"

    def close(self):
        self.is_closed = True


def pending(monkeypatch, tmp_path, lines, **case):
    made = iter(lines)
    monkeypatch.setattr(gpu, "Worker", lambda *_, **__: Answers(next(made)))
    return gpu.Pending(Case("some", "Llama-3-8B", **case), "cuda:sm_90a", tmp_path)


def test_a_case_is_ready_when_all_have_answered(monkeypatch, tmp_path):
    done = json.dumps({"compile_s": 1.0})
    one = pending(monkeypatch, tmp_path, [done, done, done, done])
    assert one.is_ready(0)
    assert one.folder_of(2) == tmp_path / "2"
    assert one.has_ranks
    assert not one.row["wrong"]


def test_failures_and_what_is_late_are_told(monkeypatch, tmp_path):
    refused = json.dumps({"error": "RuntimeError: no"})
    one = pending(monkeypatch, tmp_path, [refused, "", None], has_peer=True, sizes=(2,))
    assert not one.is_ready(0)
    one.give_up()
    assert one.row["wrong"] == [
        "2 workers: RuntimeError: no",
        "rank 0: the process ended with 1",
        "rank 1: not ready in time",
    ]
    assert one.folder_of(2) is None
    assert not one.has_ranks
    assert one.ranks[1].is_closed


def test_what_is_not_ready_comes_last(monkeypatch, tmp_path):
    late = pending(monkeypatch, tmp_path, [None, None], has_peer=False)
    soon = pending(monkeypatch, tmp_path, [json.dumps({"compile_s": 1.0})] * 2, has_peer=False)
    assert [*gpu._in_turn([late, soon], time.monotonic() + 0.5)] == [soon, late]
    assert soon.row["beside"] == 1


@pytest.mark.parametrize("name", DEFAULT)
def test_cases_travel_as_lines(name):
    (case,) = (one for one in CASES if one.name == name)
    assert Case.of_json(case.as_json) == case
