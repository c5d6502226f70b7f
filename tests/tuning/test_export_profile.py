"""Questions of the planner as a folder: built here, answered by a script elsewhere, imported."""

import json
import os
import subprocess
import sys

import pytest
from tuned_models import attention

from tvm_fusion import FusionConfig
from tvm_fusion.fusion.database.comparisons import Comparisons
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.measure.isolate import Failed
from tvm_fusion.report.planned import plan_model
from tvm_fusion.tuning import candidates
from tvm_fusion.tuning import candidates as export_profile
from tvm_fusion.tuning.candidate_bench import measure
from tvm_fusion.tuning.candidate_bench.log import Log
from tvm_fusion.tuning.candidates import export_candidates
from tvm_fusion.tuning.exchange import import_lines


def exported(tmp_path, name, profile="trials=9", target="cpu"):
    config = FusionConfig(profile=profile)
    db = tmp_path / "t.db"
    return export_candidates(attention(), target, tmp_path / name, config, db=db, budget="trials=2")


def table(folder):
    return json.loads((folder / "candidates.json").read_text())["tasks"]


class FakeBench:
    """Answers by a list: the second alternative's time, the first's, an error."""

    def __init__(self, *answers):
        self.answers, self.changed = list(answers), 0

    def candidate(self, number, place, times):
        assert (number, place) == (0, 1)
        return self.answers.pop(0)

    def change(self):
        self.changed += 1


@pytest.fixture
def unbuilt(monkeypatch):
    """Entries without libraries."""

    def entry(question, mods, tolerance, tuned, spec, folder, number, model_bytes):
        assert len(mods) == 2
        return {"question": question.__dict__, "title": question.title, "candidates": [{}, {}]}

    monkeypatch.setattr(export_profile, "export_question", entry)
    monkeypatch.setattr(candidates, "_shares", lambda tasks, spec: [])


@pytest.mark.parametrize(
    ("answers", "us", "changed"),
    [
        ([(5.0, 4.0, "")], [4.0, 5.0], 0),
        ([(4.0, 5.0, ""), (4.0, 4.5, "")], [4.5, 4.0], 1),  # what favours fusing counts
        ([(4.0, 5.0, ""), (4.0, 6.0, "")], [5.0, 4.0], 1),
        ([(None, None, "ended by SIGSEGV")], [], 0),
        ([(4.0, 5.0, ""), (None, None, "ended by SIGSEGV")], [], 1),
    ],
)
def test_answers_of_another_machine_decide(tmp_path, unbuilt, answers, us, changed):
    told = exported(tmp_path, "c", "trials=1")
    assert (told["comparisons"], told["tasks"], told["failed"]) == (1, 0, 0)
    (task,) = table(tmp_path / "c")
    bench, log = FakeBench(*answers), Log(tmp_path / "records.jsonl")
    assert measure.compare(bench, log, 0, task)
    assert (bench.answers, bench.changed) == ([], changed)
    log.close()
    log = Log(tmp_path / "records.jsonl")  # another run has nothing to do
    assert measure.compare(bench, log, 0, task) == ""
    log.close()
    assert import_lines(tmp_path / "t.db", tmp_path / "records.jsonl") == 1
    with Records.open(tmp_path / "t.db") as records:
        (answer,) = Comparisons(records).everything()
    assert answer.us == tuple(us)
    assert bool(answer.error) == (not us)
    counts = plan_model(attention(), "cpu", FusionConfig(db=tmp_path / "t.db")).profile
    assert (counts["known"], counts["failed"]) == (int(bool(us)), int(not us))


def test_another_plan_asks_other_questions_until_none_is_open(tmp_path, unbuilt):
    rounds = 0
    while exported(tmp_path, str(rounds), "trials=1")["comparisons"]:
        log = Log(tmp_path / "records.jsonl")
        (task,) = table(tmp_path / str(rounds))
        measure.compare(FakeBench((9.0, 5.0, "")), log, 0, task)
        log.close()
        import_lines(tmp_path / "t.db", tmp_path / "records.jsonl")
        rounds += 1
    assert rounds == 2
    config = FusionConfig(db=tmp_path / "t.db")
    assert plan_model(attention(), "cpu", config).profile == {
        "measured": 0, "known": 2, "failed": 0, "estimated": 0,
    }  # fmt: skip


def test_questions_that_cannot_be_built_are_recorded(tmp_path, unbuilt, monkeypatch):
    def fail(*_):
        raise Failed("RuntimeError: no")

    monkeypatch.setattr(export_profile, "export_question", fail)
    told = exported(tmp_path, "c")
    assert told["comparisons"] == 0 < told["failed"]
    with Records.open(tmp_path / "t.db") as records:
        assert {a.error for a in Comparisons(records).everything()} == {"RuntimeError: no"}


@pytest.mark.slow
def test_the_script_measures_questions(tmp_path):
    told = exported(tmp_path, "c", "trials=2")
    assert told["candidates"] == 2 * told["comparisons"] == 4
    command = [sys.executable, str(tmp_path / "c" / "measure.py"), "--seconds", "0.001"]
    command += ["--timeout", "1000"]
    run = subprocess.run(command, cwd="/", capture_output=True, text=True, env={**os.environ})
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(" us fused, ") == 2
    assert import_lines(tmp_path / "t.db", tmp_path / "c" / "records.jsonl") == 2
    counts = plan_model(attention(), "cpu", FusionConfig(db=tmp_path / "t.db")).profile
    assert counts["known"] == 2
