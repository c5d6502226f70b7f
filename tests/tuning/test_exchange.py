"""Records as JSON lines: out, in again, merged; a bad line imports nothing."""

import json
from dataclasses import replace

import pytest

from tvm_fusion import __version__
from tvm_fusion.cli.commands.tune import listed, prune
from tvm_fusion.errors import UserError
from tvm_fusion.fusion.database.comparisons import Comparison, Comparisons, Question
from tvm_fusion.fusion.database.key import Key
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.database.tuning_records import Trial, TuningRecords
from tvm_fusion.tuning.exchange import export_lines, import_lines

VERSIONS = {"tvm_fusion": __version__, "apache-tvm": "0.0", "template": "contraction"}
DEVICE = json.dumps(["llvm", "zen9", "Some CPU", 2])
KEY = Key("0123", '["float32"]', '[["8"]]', DEVICE, json.dumps(VERSIONS))
OTHER = replace(KEY, structure="4567")


def filled(path, us=10.0):
    with Records.open(path) as records:
        known = TuningRecords(records)
        known.put_trial(KEY, "matmul [8x8]", Trial({"mr": 4}, us, 15.0))
        known.put_trial(KEY, "matmul [8x8]", Trial({"mr": 8}, None, None, "ended by SIGSEGV"))
        known.put_best(KEY, "matmul [8x8]", {"mr": 4}, us, 15.0)
        known.put_trial(OTHER, "conv2d", Trial({"band": 1}, 5.0, 5.0))
    return path


def everything(path):
    with Records.open(path) as records:
        known = TuningRecords(records)
        return [
            (key, title, known.trials(key), b and (b.config, b.us, b.default_us))
            for _, key, title in known.tasks()
            for b in [known.best(key)]
        ]


def test_what_is_exported_is_imported(tmp_path):
    db = filled(tmp_path / "a.db")
    assert export_lines(db, tmp_path / "a.jsonl") == 2
    assert import_lines(tmp_path / "b.db", tmp_path / "a.jsonl") == 2
    assert everything(tmp_path / "b.db") == everything(db)
    export_lines(tmp_path / "b.db", tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()


@pytest.mark.parametrize(("theirs", "kept"), [(8.0, 8.0), (12.0, 10.0)])
def test_the_better_configuration_stays(tmp_path, theirs, kept):
    export_lines(filled(tmp_path / "a.db", theirs), tmp_path / "a.jsonl")
    mine = filled(tmp_path / "b.db")
    import_lines(mine, tmp_path / "a.jsonl")
    assert listed(mine)[0]["us"] == kept


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda line: line[:-9], "Expecting|Unterminated|delimiter"),
        (lambda line: "[]", "list indices"),
        (lambda line: line.replace('"structure"', '"shape"'), "unexpected keyword"),
        (lambda line: line.replace("10.0", "-10.0"), "-10.0 us is not a duration"),
        (lambda line: line.replace("10.0", "NaN"), "nan us is not a duration"),
        (lambda line: line.replace('{"mr": 4}', "[4]"), "a configuration is not an object"),
        (lambda line: line.replace('{"mr": 4}', '{"mr": [4]}'), "a configuration is not an object"),
    ],
)
def test_a_corrupted_line_imports_nothing(tmp_path, damage, reason):
    export_lines(filled(tmp_path / "a.db"), tmp_path / "a.jsonl")
    first, second = (tmp_path / "a.jsonl").read_text().splitlines()
    assert damage(first) != first
    (tmp_path / "a.jsonl").write_text(f"{second}\n{damage(first)}\n")
    mine = filled(tmp_path / "b.db", 14.0)
    before = everything(mine)
    with pytest.raises(UserError, match=rf"line 2 of .*({reason}).*nothing was imported"):
        import_lines(mine, tmp_path / "a.jsonl")
    assert everything(mine) == before


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match="there are no records"):
        export_lines(tmp_path / "none.db", tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="cannot be written"):
        export_lines(filled(tmp_path / "a.db"), tmp_path / "none" / "a.jsonl")
    with pytest.raises(UserError, match="cannot be read as lines of text"):
        import_lines(tmp_path / "b.db", tmp_path / "none.jsonl")


def test_the_list(tmp_path):
    (one,) = listed(filled(tmp_path / "a.db"))  # of the other, nothing is decided yet
    assert (one["title"], one["template"], one["config"]) == (
        "matmul [8x8]", "contraction", {"mr": 4},
    )  # fmt: skip
    assert (one["gain"], one["trials"], one["device"]) == (1.5, 2, json.loads(DEVICE))


def test_pruning_removes_what_other_versions_measured(tmp_path):
    import tvm

    db = filled(tmp_path / "a.db")
    ours = replace(KEY, versions=json.dumps({**VERSIONS, "apache-tvm": tvm.__version__}))
    with Records.open(db) as records:
        TuningRecords(records).put_best(ours, "ours", {"mr": 2}, 1.0, 2.0)
    assert prune(db) == 2
    assert [title for _, title, *_ in everything(db)] == ["ours"]
    with Records.open(db) as records:
        assert records.query("SELECT count(*) FROM trial") == [(0,)]
    assert prune(db) == 0


def test_pruning_removes_failures_and_keeps_times(tmp_path):
    import tvm

    versions = json.dumps({"tvm_fusion": __version__, "apache-tvm": tvm.__version__})
    ours = replace(KEY, versions=json.dumps({**json.loads(versions), "template": "contraction"}))
    slow = Trial({"mr": 8}, None, None, "took longer than 60 seconds")
    asked = [Question(name, DEVICE, versions, "matmul") for name in ("right", "failed")]
    with Records.open(tmp_path / "a.db") as records:
        known, answers = TuningRecords(records), Comparisons(records)
        for trial in (Trial({"mr": 4}, 10.0, 15.0), slow):
            known.put_trial(ours, "ours", trial)
        known.put_best(ours, "ours", {"mr": 4}, 10.0, 15.0)
        answers.put(Comparison(asked[0], (1.0, 2.0)))
        answers.put(Comparison(asked[1], (), error="took longer than 60 seconds"))
    assert prune(tmp_path / "a.db") == 2
    with Records.open(tmp_path / "a.db") as records:
        known = TuningRecords(records)
        assert [trial.config for trial in known.trials(ours)] == [{"mr": 4}]
        assert known.best(ours).config == {"mr": 4}
        assert [a.question.structure for a in Comparisons(records).everything()] == ["right"]
    assert prune(tmp_path / "a.db") == 0
