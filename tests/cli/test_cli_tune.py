"""``tune`` on the command line: lines where there is no terminal, records, and mistakes."""

import json
import os
import shutil
import sqlite3

import onnx
import pytest
from tiny_models import dense

from tvm_fusion.fusion.database.key import Key
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.database.tuning_records import Trial, TuningRecords
from tvm_fusion.measure.timing import Effort
from tvm_fusion.tuning import tuner


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(dense(), path)
    return path


@pytest.fixture(scope="module")
def tuned(model, tmp_path_factory):
    """Records of a few trials, and what the command printed."""
    from tvm_fusion.cli import main

    db, patch = tmp_path_factory.mktemp("records") / "t.db", pytest.MonkeyPatch()
    patch.setattr(tuner.Effort, "__init__", _quick(Effort.__init__))
    try:
        arguments = ["tune", model, "--dim", "batch=24", "--db", db, "--budget", "trials=6"]
        assert main([str(a) for a in arguments]) == 0
    finally:
        patch.undo()
    return db


def _quick(whole):
    def init(self, seconds=0.002, fewest=2, most=3, hopeless=1.3, timeout=600.0, swept=0):
        whole(self, seconds, fewest, most, hopeless, timeout, swept)

    return init


@pytest.mark.slow
def test_lines_where_there_is_no_terminal(cli, model, tuned):
    result = cli("tune", model, "--dim", "batch=24", "--db", tuned, "--budget", "trials=6")
    assert result.code == 0
    assert result.err.splitlines()[0] == "planning"
    assert result.err.splitlines()[-1].startswith("done: 1 task, 6 trials, ")
    assert " of 1 task faster than the default after 6 trials (0 failed); " in result.out


@pytest.mark.slow
def test_records_are_listed_moved_and_pruned(cli, tuned, tmp_path):
    found = json.loads(cli("tune", "--db", tuned, "--list", "--json").out)
    (record,) = found["records"]
    assert record["title"].startswith("matmul + add + relu [24x32]")
    assert "matmul" in cli("tune", "--db", tuned, "--list").out
    lines = tmp_path / "t.jsonl"
    assert "1 record written" in cli("tune", "--db", tuned, "--export", lines).out
    copy = tmp_path / "copy.db"
    assert "1 record imported" in cli("tune", "--db", copy, "--import", lines).out
    assert (
        json.loads(cli("tune", "--db", copy, "--list", "--json").out)["records"][0]["us"]
        == (record["us"])
    )
    assert "0 records removed" in cli("tune", "--db", copy, "--prune").out


@pytest.mark.slow
def test_compile_takes_records(cli, model, tuned, tmp_path):
    result = cli(
        "compile", model, "-o", tmp_path / "a", "--dim", "batch=24", "--db", tuned, "--json"
    )
    assert result.code == 0
    assert f"--db {tuned}" in json.loads(result.out)["explain"]


@pytest.mark.slow
def test_compile_tells_once_of_records_of_another_device(cli, model, tuned, tmp_path):
    path = tmp_path / "other.db"
    shutil.copy(tuned, path)
    with sqlite3.connect(path) as file:
        file.execute("""UPDATE task SET device = '["llvm", "zen9", "Some CPU", 96]'""")
        file.execute("UPDATE tuned SET us = default_us / 2")
    result = cli("compile", model, "-o", tmp_path / "a", "--dim", "batch=24", "--db", path)
    assert result.code == 0
    words = "other.db has measured these kernels on llvm zen9 (Some CPU) 96 cores and not on llvm"
    assert " ".join((result.out + result.err).split()).count(words) == 1


def test_nothing_is_lost_of_a_database_of_something_else(cli, model, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("These are notes, and no database at all.\n" * 30)
    before = path.read_bytes()
    assert "cannot be used" in cli("tune", model, "--db", path).sentence
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "trials=5"], "no records are named; expected --db FILE"),
        (["--db", "t.db", "--budget", "0s"], "is shorter than one trial"),
        (["--db", "t.db", "--budget", "trials=0"], "allows no trial"),
        (["--db", "t.db", "--budget", "a while"], "budget 'a while'; expected a time"),
        (["--db", "t.db", "--runner", "cloud"], "runner 'cloud'; expected local"),
        (["--db", "none/t.db"], "is not in an existing folder"),
        (["--db", "t.db", "--target", "cuda:sm_90a"], "cannot be measured by the runner 'local'"),
    ],
)
def test_mistakes(cli, model, tmp_path, monkeypatch, arguments, words):
    monkeypatch.delenv("TVM_FUSION_RECORDS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert words in cli("tune", model, *arguments).sentence
    assert os.listdir(tmp_path) == []


def test_no_model(cli, tmp_path):
    assert "no model is named" in cli("tune", "--db", tmp_path / "t.db").sentence


def test_records_that_are_not_there(cli, model, tmp_path):
    for arguments in (["tune", "--list"], ["tune", "--prune"], ["explain", model]):
        sentence = cli(*arguments, "--db", tmp_path / "none.db").sentence
        assert "there are no records" in sentence


def test_read_only_records(cli, model, tmp_path, monkeypatch):
    path = tmp_path / "t.db"
    Records.open(path).close()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert "are read-only" in cli("tune", model, "--db", path).sentence


def test_compile_says_where_the_answers_of_its_profile_came_from(cli, model, tuned, tmp_path):
    result = cli("compile", model, "--dim", "batch=24", "--db", tuned, "-o", tmp_path / "a")
    assert "profile: 0 comparisons measured, 0 from records, 0 estimated" in result.out


def test_tasks_of_an_interrupted_run_are_listed(cli, tmp_path):
    """What was measured before Ctrl-C is shown, although nothing has been chosen."""
    path = tmp_path / "t.db"
    with Records.open(path) as records:
        key = Key("structure", "float32", "8x8", '["llvm"]', '{"template": "gemm"}')
        for tile, us in ((1, 5.0), (2, None)):
            trial = Trial({"tile": tile}, us, us and 10.0, "" if us else "crashed")
            TuningRecords(records).put_trial(key, "matmul [8x8]", trial)
    found = json.loads(cli("tune", "--db", path, "--list", "--json").out)
    assert found["records"] == []
    assert found["unfinished"] == [{"number": 1, "title": "matmul [8x8]", "trials": 2, "gain": 2.0}]
    shown = cli("tune", "--db", path, "--list").out
    assert "the same command continues" in shown
    assert "2.000x" in shown
