"""Measuring a folder of candidates: crashes, hangs, kills and budgets cost no record.

Libraries are those of a CPU; what goes wrong with a candidate is put in the place of its library.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tuned_models import two_products

from tvm_fusion.tuning import build_candidates
from tvm_fusion.tuning.candidate_bench import measure
from tvm_fusion.tuning.candidates import export_candidates

pytestmark = pytest.mark.slow_beyond(2)

WAIT_SECONDS = 600.0  # which ends what hangs
CRASHING = "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }"
HANGING = (
    "void pause(void); __attribute__((constructor)) static void hang(void) { for (;;) pause(); }"
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("candidates")
    export_candidates(two_products(), "cpu", folder / "c", db=folder / "t.db", budget="trials=4")
    return folder / "c"


@pytest.fixture
def folder(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "c")
    return tmp_path / "c"


def table(folder):
    return json.loads((folder / "candidates.json").read_text())


def replaced(folder, source, task=0, place=1):
    """Put a library in a candidate's place."""
    path = folder / table(folder)["tasks"][task]["candidates"][place]["file"]
    path.unlink()
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def lines(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def trials(folder):
    """What is recorded: task, configuration, time, error."""
    titles = [task["key"] for task in table(folder)["tasks"]]
    return [
        (titles.index(line["key"]), json.dumps(config, sort_keys=True), us, error)
        for line in lines(folder)
        for config, us, _, error in line["trials"]
    ]


def run(folder, *options):
    return measure.main(folder, ["--seconds", "0.001", "--timeout", str(WAIT_SECONDS), *options])


def all_once(folder):
    """Each candidate of the folder has one record, and each task is decided once."""
    found = [(task, config) for task, config, _, _ in trials(folder)]
    tasks = table(folder)["tasks"]
    wanted = [
        (number, json.dumps(candidate["config"], sort_keys=True))
        for number, task in enumerate(tasks)
        for candidate in task["candidates"]
    ]
    assert sorted(found) == sorted(wanted)
    assert sum("decided" in line for line in lines(folder)) == len(tasks)
    return True


@pytest.mark.slow
def test_a_crash_costs_the_candidate(folder):
    replaced(folder, CRASHING)
    assert run(folder) == 0
    assert all_once(folder)
    (failed,) = [(task, error) for task, _, us, error in trials(folder) if us is None]
    assert failed[0] == 0
    assert failed[1].startswith("ended by SIG")


@pytest.mark.slow
def test_a_hang_costs_the_candidate(folder, monkeypatch):
    """Whatever the limit is, it is over at some time."""
    replaced(folder, HANGING)
    ask = measure.Worker.ask

    def short(self, request, seconds):
        self.task = request.get("prepare", getattr(self, "task", None))
        is_hanging = self.task == 0 and request.get("candidate") == 1
        return ask(self, request, 0.2 if is_hanging else seconds)

    monkeypatch.setattr(measure.Worker, "ask", short)
    assert run(folder) == 0
    assert all_once(folder)
    failed = [(task, error) for task, _, us, error in trials(folder) if us is None]
    assert failed == [(0, "took longer than 0.2 seconds")]


@pytest.mark.slow
def test_a_default_that_crashes_costs_its_task(folder):
    replaced(folder, CRASHING, place=0)
    assert run(folder) == 0
    found = trials(folder)
    assert [(us, error[:9]) for task, _, us, error in found if task == 0] == [(None, "ended by ")]
    decided = {line["key"]["shapes"]: line["tuned"] for line in lines(folder) if "decided" in line}
    assert [value is None for value in decided.values()] == [True, False]
    assert all(us for task, _, us, _ in found if task == 1)


@pytest.mark.slow
def test_other_results_are_refused(folder, tmp_path):
    """The library of the same task with other weights."""
    other = tmp_path / "o"
    export_candidates(two_products(seed=1), "cpu", other, db=tmp_path / "o.db", budget="trials=1")
    (default, candidate), (wrong, *_) = (
        [one["file"] for one in table(place)["tasks"][0]["candidates"][:2]]
        for place in (folder, other)
    )
    shutil.copyfile(other / wrong, folder / candidate)
    assert default != candidate
    assert run(folder) == 0
    assert all_once(folder)
    (failed,) = [(task, error) for task, _, us, error in trials(folder) if us is None]
    assert failed[0] == 0
    assert "its results differ from the default's by" in failed[1]


@pytest.mark.slow
def test_weights_are_drawn_once_and_packed_by_each_candidate(tmp_path, monkeypatch):
    """As a GPU's are; here candidates have panels of different widths."""
    monkeypatch.setattr(build_candidates, "_built", build_candidates._build)
    place = tmp_path / "c"
    export_candidates(two_products(), "cpu", place, db=tmp_path / "t.db", budget="trials=6")
    tasks = table(place)["tasks"]
    assert [task["weights"][0][:2] for task in tasks] == [
        [shape, "float32"] for shape in ([72, 300], [300, 70])
    ]
    forms = {json.dumps(one["weights"]) for one in tasks[0]["candidates"]}
    assert len(forms) > 1
    assert run(place) == 0
    assert all_once(place)
    assert not any(error for _, _, _, error in trials(place))


@pytest.mark.slow
def test_no_time_is_no_record(folder, capsys):
    assert run(folder, "--budget", "0") == 0
    assert "the budget is spent" in capsys.readouterr().out
    assert lines(folder) == []
    assert run(folder) == 0
    assert all_once(folder)


@pytest.mark.slow
def test_a_budget_ends_a_hang_without_a_record(folder, monkeypatch):
    """What the budget cuts off is measured by the next run: nothing is known of it."""
    path = replaced(folder, HANGING)
    monkeypatch.setattr(measure.Bench, "_left", _left_until(folder, 1))
    assert run(folder) == 0
    known = len(trials(folder))
    assert known == 1  # the default
    monkeypatch.undo()
    tasks = table(folder)["tasks"]
    shutil.copyfile(folder / tasks[0]["candidates"][0]["file"], path)
    assert run(folder) == 0
    assert all_once(folder)


def _left_until(folder, records):
    """All the time there is until so many records are written, then next to none."""

    def left(self):
        path = folder / "records.jsonl"
        known = len(path.read_text().splitlines()) if path.exists() else 0
        is_asking = self._worker is not None and self._worker.prepared is not None
        return 0.2 if is_asking and known >= records else WAIT_SECONDS

    return left


@pytest.mark.slow
def test_a_killed_run_loses_nothing(folder):
    command = [sys.executable, str(folder / "measure.py"), "--seconds", "0.001"]
    without_torch = str(Path(__file__).parents[1] / "without_torch")
    environment = {**os.environ, "PYTHONPATH": without_torch}
    process = subprocess.Popen(command, env=environment, cwd="/")
    path, end = folder / "records.jsonl", time.monotonic() + WAIT_SECONDS
    while not (path.exists() and path.read_text().count("\n") >= 2):
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = lines(folder)
    with path.open("ab") as file:
        file.write(b'{"key": {"struc')  # a line that was cut off
    assert run(folder) == 0
    assert lines(folder)[: len(before)] == before
    assert all_once(folder)


@pytest.mark.slow
def test_a_device_that_is_not_there(folder):
    data = table(folder)
    (folder / "candidates.json").write_text(json.dumps({**data, "kind": "nodevice"}))
    with pytest.raises(SystemExit, match=r"nothing can be measured here: .*nodevice"):
        run(folder)


class Fake:
    """A process that answers from a list: times, or an error for the second behind the first."""

    started: list

    def __init__(self, folder):
        self.prepared, self.is_used = None, False
        self.started.append(self)
        self.is_killed = False

    def wait_until_ready(self, seconds):
        pass

    def ask(self, request, seconds):
        assert not self.is_killed
        if "prepare" in request:
            return {"us": [10.0, 10.0]}
        if request["candidate"] == 2 and self is self.started[0]:
            raise measure.Failed("spoilt by the one before")
        is_race = request["seconds"] > 0.001
        us = {1: 9.0, 2: 9.9 if is_race else 8.0}[request["candidate"]]
        return {"us": [us, 10.0]}

    def kill(self):
        self.is_killed = True


@pytest.fixture
def faked(tmp_path, monkeypatch):
    monkeypatch.setattr(Fake, "started", [], raising=False)
    monkeypatch.setattr(measure, "Worker", Fake)
    configs = [{"config": {"mr": n}, "file": f"0_{n}.so"} for n in range(3)]
    task = {"key": {"structure": "0"}, "title": "a task", "candidates": configs}
    data = {"kind": "cuda", "gain": 0.98, "tasks": [task]}
    (tmp_path / "candidates.json").write_text(json.dumps(data))
    return tmp_path


def test_what_fails_behind_others_gets_a_fresh_process(faked):
    """The second fails behind the first, is right alone, and does not gain when it is raced."""
    assert run(faked) == 0
    assert len(Fake.started) == 3  # the one that fails, the one behind it, a spare one
    assert all(one.is_killed for one in Fake.started)
    assert [(us, error) for _, _, us, error in trials(faked)] == [(10.0, ""), (9.0, ""), (8.0, "")]
    (decided,) = [line["tuned"] for line in lines(faked) if "decided" in line]
    assert decided == [{"mr": 1}, pytest.approx(9.0), 10.0]
