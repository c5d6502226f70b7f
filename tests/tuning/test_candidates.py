"""Candidates as a folder: built here, measured by a script without the compiler, imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from relax_modules import main_module
from tuned_models import two_products
from tvm import relax

import tvm_fusion
from tvm_fusion.errors import UserError
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.database.tuning_records import TuningRecords
from tvm_fusion.tuning.candidates import export_candidates
from tvm_fusion.tuning.exchange import import_lines

pytestmark = pytest.mark.slow_beyond(2)

WITHOUT_TORCH = Path(__file__).parents[1] / "without_torch"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("candidates")
    db = folder / "t.db"
    told = export_candidates(two_products(), "cpu", folder / "c", db=db, budget="trials=2")
    return folder / "c", db, told


def measure(folder, *options):
    """Run the script as another machine would: without this package."""
    env = {**os.environ, "PYTHONPATH": str(WITHOUT_TORCH)}
    command = [sys.executable, str(folder / "measure.py"), "--timeout", "1000"]
    command += ["--seconds", "0.001", *options]
    run = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_a_folder_is_measured_and_imported(exported):
    folder, db, told = exported
    data = json.loads((folder / "candidates.json").read_text())
    assert told["tasks"] == len(data["tasks"]) == 2
    assert told["candidates"] == sum(len(task["candidates"]) for task in data["tasks"]) == 4
    assert told["failed"] == 0
    assert not any(task["weights"] for task in data["tasks"])  # a CPU's packing is a choice
    # A library that cannot be loaded costs only itself.
    last = data["tasks"][0]["candidates"][-1]["file"]
    (folder / last).write_bytes(b"no library")
    output = measure(folder)
    assert output.count("measured") == 2
    assert measure(folder) == ""  # nothing is left
    lines = folder / "records.jsonl"
    assert import_lines(db, lines) == 2
    with Records.open(db) as records:
        known = TuningRecords(records)
        trials = [trial for _, key, _ in known.tasks() for trial in known.trials(key)]
        assert len(trials) == told["candidates"]
        assert sum(bool(trial.error) for trial in trials) == 1
        assert all(trial.us > 0 < trial.default_us for trial in trials if not trial.error)
        assert len(known.everything()) == 2
    artifact = tvm_fusion.compile(two_products(), db=db)
    assert not [d for d in artifact.manifest["decisions"] if d["code"] == "tuned_config_unfit"]


@pytest.mark.slow
def test_the_script_needs_no_compiler(exported):
    for path in [exported[0] / "measure.py", *(exported[0] / "candidate_bench").glob("*.py")]:
        text = path.read_text()
        assert "import tvm\n" not in text
        assert "from tvm " not in text
        assert "tvm_fusion." not in text


@pytest.mark.slow
def test_exporting_again_builds_others(exported, tmp_path):
    folder, db, _ = exported
    known = {
        json.dumps(one["config"], sort_keys=True)
        for task in json.loads((folder / "candidates.json").read_text())["tasks"]
        for one in task["candidates"][1:]
    }
    if not (folder / "records.jsonl").exists():
        measure(folder)
        import_lines(db, folder / "records.jsonl")
    export_candidates(two_products(), "cpu", tmp_path / "c", db=db, budget="trials=2")
    again = json.loads((tmp_path / "c" / "candidates.json").read_text())["tasks"]
    others = [json.dumps(o["config"], sort_keys=True) for t in again for o in t["candidates"][1:]]
    assert others
    assert known.isdisjoint(others)


@pytest.mark.parametrize(
    ("target", "budget", "words"),
    [
        ("cpu", "5m", "budget '5m' of candidates to export; expected trials=N"),
        ("cuda:sm_80,sm_90a", "trials=2", "names several architectures"),
    ],
)
def test_mistakes(tmp_path, target, budget, words):
    with pytest.raises(UserError, match=words):
        export_candidates(
            two_products(), target, tmp_path / "c", db=tmp_path / "t.db", budget=budget
        )
    assert not (tmp_path / "c").exists()


def test_folders_with_something_in_them_stay_as_they_are(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine").touch()
    with pytest.raises(UserError, match="is not empty; expected a folder to make"):
        export_candidates(two_products(), "cpu", tmp_path / "c", db=tmp_path / "t.db")
    assert list((tmp_path / "c").iterdir()) == [tmp_path / "c" / "mine"]


@pytest.mark.cuda_toolchain
def test_candidates_for_a_gpu_are_machine_code_without_weights(tmp_path):
    weight = np.random.default_rng().standard_normal((64, 96)).astype("float16")
    x = relax.Var("x", relax.TensorType((48, 64), "float16"))
    mod = main_module([x], lambda emit, x: emit(relax.op.matmul(x, relax.const(weight))))
    told = export_candidates(
        mod, "cuda:sm_90a", tmp_path / "c", db=tmp_path / "t.db", budget="trials=2"
    )
    assert told["candidates"] + told["failed"] == 3
    (task,) = json.loads((tmp_path / "c" / "candidates.json").read_text())["tasks"]
    assert task["repeats"] == 1  # calls are captured in a graph
    ((shape, dtype, mean, deviation),) = task["weights"]
    assert (shape, dtype) == ([64, 96], "float16")
    assert abs(mean) < 0.1 < deviation
    for candidate in task["candidates"]:
        code = Path(tmp_path / "c" / candidate["file"]).read_bytes()
        assert b"\x7fELF" in code[4:]  # a cubin inside of the library
        assert weight.tobytes() not in code
