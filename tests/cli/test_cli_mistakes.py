"""Every mistake of a user: exit code 2, one line, no traceback, nothing written."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from tiny_models import dense, dense_data, onnx_model

from tvm_fusion.cli.dispatch import COMMANDS, DEFECT, dispatch
from tvm_fusion.deploy.runtime import load
from tvm_fusion.deploy.runtime.artifact import manifest


def not_onnx(place, _whole):
    (place / "m.onnx").write_text("this is a text about models\n" * 9)


def truncated(place, whole):
    (place / "m.onnx").write_bytes(whole.read_bytes()[:-2000])


def empty(place, _whole):
    (place / "m.onnx").write_bytes(b"")


def missing(place, _whole):
    pass


def a_folder(place, _whole):
    (place / "m.onnx").mkdir()


def a_pipe(place, _whole):
    os.mkfifo(place / "m.onnx")


def without_external_data(place, _whole):
    onnx.save(
        dense(), place / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    (place / "m.data").unlink()


def with_external_data_cut_short(place, _whole):
    without_external_data(place, None)
    (place / "m.data").write_bytes(b"short")


def unsupported(place, _whole):
    model = onnx_model(
        [
            ("Multinomial", ["x"], ["d"]),
            ("StringNormalizer", ["d"], ["s"]),
            ("Multinomial", ["s"], ["y"]),
        ],
        [("x", T.FLOAT, [3, 3])],
        [("y", T.FLOAT, [])],
    )
    onnx.save(model, place / "m.onnx")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (not_onnx, "m.onnx is not an ONNX file"),
        (truncated, "m.onnx is cut short; expected a whole ONNX file; copy or export it again"),
        (empty, "m.onnx is not an ONNX file"),
        (missing, "m.onnx does not exist; expected an ONNX file; check the path"),
        (a_folder, "m.onnx is a folder; expected an ONNX file"),
        (a_pipe, "m.onnx is a device or a pipe; expected an ONNX file; write the model to a file"),
        (without_external_data, "m.onnx keeps its weights in m.data, which is not next to it"),
        (with_external_data_cut_short, "m.data is cut short: 5 bytes"),
        (unsupported, r"unsupported operators Multinomial \(2x\), StringNormalizer \(1x\)"),
    ],
)
def test_a_model_that_cannot_be_compiled(cli, dense_file, tmp_path, make, words):
    make(tmp_path, dense_file)
    arguments = ("compile", tmp_path / "m.onnx", "-o", tmp_path / "new" / "out")
    before = sorted(tmp_path.rglob("*"))
    assert re.search(words, cli(*arguments).sentence)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], r"unbound dimensions batch of input data\[0\]; give --dim batch=VALUE or batch=LOW"),
        (
            ["--dim", "batch"],
            "--dim 'batch'; expected NAME=EXTENT, NAME=LOW..HIGH or NAME=LOW..HIGH:STEP",
        ),
        (["--dim", "length=3"], "--dim length names no dimension of the model; expected one of"),
        (["--dim", "batch=1", "--dim", "batch=2"], "names 'batch' again"),
        (["--dim", "batch=1", "--target", "vax"], "unknown target 'vax'; expected cpu, cpu:<name>"),
        (["--dim", "batch=1", "--target", "sm_80"], "unknown target 'sm_80'.*; write cuda:sm_80"),
        (["--dim", "batch=1", "--target", "gpu"], "unknown target 'gpu'.*; write cuda or rocm"),
        (["--dim", "batch=1", "--target", "cuda:sm_11"], "unknown cuda architecture 'sm_11'; exp"),
        (["--dim", "batch=1", "--target", "rocm:gfx1"], "unknown rocm architecture 'gfx1'; expec"),
        (["--dim", "batch=1", "--target", "cpu:386sx"], "unknown CPU '386sx'; expected a name"),
        (["--dim", "batch=1", "--dump", "/proc/none"], "cannot write to '/proc/none'"),
        (["--precision", "fp8"], "invalid choice: 'fp8'.*; see `tvm-fusion compile --help`"),
        (["--dim", "batch=1", "--allow", "reasociate"], "no flag 'reasociate'; expected one"),
        (
            ["--dim", "batch=1", "--without-rule", "factor_mul"],
            "no rule 'factor_mul'; expected",
        ),
        (["--rewrite", "all"], "invalid choice: 'all'.*; see `tvm-fusion compile --help`"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate; see `tvm-fusion compile --help`"),
        (["--precission=bf16"], r"--precission=bf16 \(did you mean --precision\?\); see"),
    ],
)
def test_options_that_cannot_be(cli, dense_file, tmp_path, options, words):
    result = cli("compile", dense_file, "-o", tmp_path / "out", *options)
    assert re.search(words, result.sentence)
    assert not list(tmp_path.iterdir())


def test_an_output_that_cannot_be_written(cli, dense_file, tmp_path):
    (tmp_path / "file").write_text("mine")
    for target, words in [
        (tmp_path / "file" / "out", r"cannot write to .*/file' \(Not a directory\)"),
        (tmp_path / "file", "exists and is not an artifact; name another output folder"),
        (tmp_path, "exists and is not an artifact; name another output folder"),
        ("/proc/out", "cannot write to '/proc'"),
    ]:
        result = cli("compile", dense_file, "-o", target, "--dim", "batch=1")
        assert re.search(words, result.sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_mistake_leaves_the_old_artifact(cli, dense_copy, tmp_path):
    before = {path: path.read_bytes() for path in dense_copy.iterdir()}
    assert cli("compile", tmp_path / "none.onnx", "-o", dense_copy).sentence
    assert {path: path.read_bytes() for path in dense_copy.iterdir()} == before


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    place = tmp_path_factory.mktemp("arrays")
    good = dense_data(3)
    np.save(place / "shape.npy", good[:, :9])
    np.save(place / "dtype.npy", good.astype("float64"))
    np.save(place / "nine.npy", dense_data(9))
    np.save(place / "object.npy", np.array([{}]), allow_pickle=True)
    (place / "text.npy").write_text("1 2 3")
    (place / "cut.npy").write_bytes((place / "dtype.npy").read_bytes()[:-7])
    np.savez(place / "good.npz", data=good)
    np.savez(place / "names.npz", data=good, date=good)
    np.savez(place / "object.npz", data=np.array([{}]))
    whole = (place / "good.npz").read_bytes()
    (place / "cut.npz").write_bytes(whole[:-30])
    (place / "flipped.npz").write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    return place


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--input=data={}/shape.npy", r"input 'data' has shape \(3, 9\); expected \(batch, 64\)"),
        ("--input=data={}/dtype.npy", "input 'data' has dtype float64; expected float32; cast it"),
        ("--input=data={}/nine.npy", "input 'data' has batch = 9; expected 1 to 8; compile with"),
        ("--input=date={}/nine.npy", "unknown input 'date'; expected one of 'data'"),
        ("--input={}/nine.npy", "--input '.*nine.npy'; expected NAME=FILE.npy"),
        ("--input=data={}/none.npy", "cannot read '.*' .No such file or directory.; expected a nu"),
        ("--input=data={}", "cannot read '.*' .Is a directory.; expected a numpy .npy file"),
        (
            "--input=data={}/text.npy",
            "text.npy' is damaged, or does not hold plain arrays; expected",
        ),
        ("--input=data={}/object.npy", "object.npy' is damaged, or does not hold plain arrays"),
        ("--input=data={}/cut.npy", "cut.npy' is damaged, or does not hold plain arrays"),
        ("--input=data={}/good.npz", "the other kind of numpy file; expected a numpy .npy file"),
        ("--inputs={}/nine.npy", "the other kind of numpy file; expected a numpy .npz file"),
        ("--inputs={}/names.npz", "unknown input 'date'; expected one of 'data'"),
        ("--inputs={}/object.npz", "object.npz' is damaged, or does not hold plain arrays"),
        ("--inputs={}/cut.npz", "cut.npz' is damaged, or does not hold plain arrays"),
        ("--inputs={}/flipped.npz", "flipped.npz' is damaged, or does not hold plain arrays"),
        ("--dim=batch=9", "--dim batch=9; expected 1 to 8; compile with --dim batch=1..9"),
        ("--dim=batch=1..2", "--dim batch=1..2 is a range; expected one extent; write batch=1"),
        ("--dim=length=1", r"--dim names 'length'; expected a symbolic dimension of .* \(batch\)"),
        ("--function=mian", "the model has no function 'mian'; expected one of 'main'"),
        ("--seed=-1", "--seed -1; expected 0 or more"),
        ("--repeat=0", "--repeat 0 --warmup 2; expected at least 1 and 0"),
        ("--repeat=many", "argument --repeat: invalid int value: 'many'"),
        ("--output={}/shape.npy/y.npz", "cannot write '.*y.npz' .Not a directory"),
        ("--output={}", "cannot write '.*' .Is a directory"),
    ],
)
def test_inputs_and_options_of_a_run(cli, dense_folder, arrays, option, words):
    before = sorted(arrays.iterdir())
    assert re.search(words, cli("run", dense_folder, option.format(arrays)).sentence)
    assert sorted(arrays.iterdir()) == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="has no /dev/full")
def test_a_disk_that_is_full_while_results_are_written(cli, dense_folder):
    result = cli("run", dense_folder, "--output", "/dev/full")
    assert "cannot write '/dev/full' (No space left on device)" in result.sentence


def cut_library(folder, _monkeypatch):
    library = folder / "model.so"
    library.write_bytes(library.read_bytes()[:-1])


def change_library(folder, _monkeypatch):
    library = folder / "model.so"
    library.write_bytes(library.read_bytes()[:-1] + b"!")


def lose_weights(folder, _monkeypatch):
    (folder / "weights.bin").unlink()


def lose_manifest(folder, _monkeypatch):
    (folder / "manifest.json").unlink()


def cut_manifest(folder, _monkeypatch):
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:300])


def build_for_cuda(folder, monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: ())
    content = json.loads((folder / "manifest.json").read_text())
    content["target"] = {"text": "cuda:sm_80", "kind": "cuda", "archs": ["sm_80"]}
    manifest.write(folder, content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_library, "model.so of artifact '.*' has .* bytes; expected .* bytes; compile the mod"),
        (change_library, "model.so of artifact '.*' has been changed"),
        (lose_weights, "weights.bin of artifact '.*' is missing"),
        (lose_manifest, "is not an artifact .it has no manifest.json."),
        (cut_manifest, "manifest.json' is damaged"),
        (build_for_cuda, "is made for cuda:sm_80; this machine has no visible CUDA device: run"),
    ],
)
def test_an_artifact_that_cannot_be_run(
    cli, dense_copy, dense_file, monkeypatch, tmp_path, damage, words
):
    damage(dense_copy, monkeypatch)
    assert re.search(words, cli("run", dense_copy, "--output", tmp_path / "y.npz").sentence)
    assert re.search(words, cli("check", dense_copy, dense_file).sentence)
    assert not (tmp_path / "y.npz").exists()


def test_a_check_against_what_is_no_model(cli, dense_folder, dense_file, arrays, tmp_path):
    assert "there is no file" in cli("check", dense_folder, tmp_path / "none.onnx").sentence
    assert "is not a regular file" in cli("check", dense_folder, "/dev/null").sentence
    assert "is a model and not an artifact" in cli("check", dense_file, dense_folder).sentence
    assert "there is no model to compare" in cli("check", dense_folder).sentence
    assert "there is no folder" in cli("check", tmp_path / "none", dense_file).sentence
    assert "the reference cannot run" in cli("check", dense_folder, arrays / "text.npy").sentence
    other = onnx_model([("Relu", ["x"], ["y"])], [("x", T.FLOAT, [3])], [("y", T.FLOAT, [3])])
    onnx.save(other, tmp_path / "other.onnx")
    result = cli("check", dense_folder, tmp_path / "other.onnx")
    assert "expected the model that the artifact was compiled from" in result.sentence


def test_json_carries_the_sentence_too(cli, tmp_path):
    result = cli("inspect", tmp_path, "--json")
    assert result.code == 2
    assert result.err == f"tvm-fusion: {json.loads(result.out)['error']}\n"


def test_debug_shows_where(cli, tmp_path):
    result = cli("inspect", tmp_path, "--debug")
    assert result.code == 2
    assert "Traceback (most recent call last)" in result.err
    assert result.err.splitlines()[-1].startswith("tvm-fusion: ")


def test_a_name_with_a_line_break_stays_on_one_line(cli, tmp_path):
    result = cli("compile", tmp_path / "line\nbreak.onnx", "-o", tmp_path / "out")
    assert "line break.onnx does not exist" in result.sentence


@pytest.mark.parametrize("arguments", [[], ["compile"], ["compute"], ["run", "--json"]])
def test_a_command_line_that_is_none(cli, arguments):
    assert "--help`" in cli(*arguments).sentence


def test_an_interrupt_is_no_traceback(cli, dense_folder, monkeypatch):
    def interrupted(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS["run"], "run", interrupted)
    result = cli("run", dense_folder)
    assert (result.code, result.out, result.err) == (130, "", "tvm-fusion: interrupted\n")


@pytest.mark.slow
def test_the_process_itself_prints_one_line(dense_file, tmp_path):
    """TVM's own libraries write to the streams, too."""
    command = [
        sys.executable,
        "-m",
        "tvm_fusion.cli",
        "compile",
        dense_file,
        "-o",
        tmp_path / "out",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_defect_is_one_sentence(monkeypatch, capsys):
    def failing(_options):
        raise ValueError("not enough values to unpack")

    monkeypatch.setattr(COMMANDS["doctor"], "run", failing)
    assert dispatch(["doctor"]) == DEFECT
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ValueError" in said
    assert "unpack" not in said
    with pytest.raises(ValueError, match="unpack"):
        dispatch(["doctor", "--debug"])


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.mark.parametrize(
    "name",
    ["m.onnx", "m.data", "m.pt2", "x.npy", "c.npy", "t.db", "t.jsonl", "s.npz", "a/model.so",
     "a/weights.bin"],
)  # fmt: skip
def test_pointers_of_git_lfs(cli, dense_folder, tmp_path, name):
    shutil.copytree(dense_folder, tmp_path / "a")
    beside = {"save_as_external_data": True, "location": "m.data", "size_threshold": 0}
    onnx.save(dense(), tmp_path / "m.onnx", **beside)
    path, model, artifact = tmp_path / name, tmp_path / "m.onnx", tmp_path / "a"
    path.write_text(POINTER)
    compiling = ["compile", model, "-o", tmp_path / "b", "--dim", "batch=1"]
    command = {
        "m.pt2": ["compile", path, "-o", tmp_path / "b"],
        "x.npy": ["run", artifact, "--input", f"data={path}"],
        "c.npy": [*compiling, "--constant", f"data={path}"],
        "t.db": ["tune", "--list", "--db", path],
        "t.jsonl": ["tune", "--import", path, "--db", tmp_path / "t.db"],
        "s.npz": ["quantize", model, "--data", path, "-o", tmp_path / "q.onnx"],
        "a/model.so": ["run", artifact],
        "a/weights.bin": ["inspect", artifact],
    }.get(name, compiling)
    expected = f"{path} is a pointer of Git LFS; expected the file that it stands for; run `git lfs"
    assert expected in cli(*command).sentence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--half-io"], "half_io with precision fp32; expected precision fp16 or bf16; leave one"),
        (["--rewrite", "none", "--without-rule", "cast_twice"], "none without the rule cast_twice"),
        (["--static-input", "data", "--no-cuda-graph"], "static_inputs without a CUDA graph"),
    ],
)
def test_contradictory_options_of_a_compilation(cli, dense_file, tmp_path, options, words):
    result = cli("compile", dense_file, "-o", tmp_path / "a", "--dim", "batch=1", *options)
    assert words in result.sentence


def test_contradictory_inputs(cli, dense_folder, tmp_path):
    np.save(tmp_path / "x.npy", dense_data(2))
    np.savez(tmp_path / "x.npz", data=dense_data(2))
    one = "--input", f"data={tmp_path / 'x.npy'}"
    for options in ([*one, *one], [*one, "--inputs", tmp_path / "x.npz"]):
        found = cli("run", dense_folder, *options).sentence
        assert "input 'data' is given twice; expected one array" in found
    found = cli("run", dense_folder, *one, "--dim", "batch=3").sentence
    assert "--dim batch=3, and inputs of extent 2; expected equal extents" in found
    assert cli("run", dense_folder, *one, "--dim", "batch=2").code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--list"], "--list and a model; expected --list alone"),
        (["--import", "t.jsonl"], "--import and a model"),
        (["--export-candidates", "c", "--runner", "rpc://a:1/b"], "--export-candidates and --run"),
    ],
)
def test_contradictory_options_of_tune(cli, tmp_path, options, words):
    assert words in cli("tune", "m.onnx", "--db", tmp_path / "t.db", *options).sentence


def test_another_tvm_ffi_is_one_sentence(tmp_path):
    """On the command line; a program gets the ImportError."""
    fake = "import importlib.metadata as m; real = m.version\n"
    fake += "m.version = lambda n: '0.1.15' if n == 'apache-tvm-ffi' else real(n)\n"
    (tmp_path / "sitecustomize.py").write_text(fake)
    paths = [str(tmp_path), str(Path(__file__).parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "-m", "tvm_fusion.cli", "doctor"], **run)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tvm-fusion: tvm_fusion found apache-tvm-ffi 0.1.15; expected ")
    assert done.stderr.count("\n") == 1
    program = subprocess.run([sys.executable, "-c", "import tvm_fusion"], **run)
    assert "ImportError: tvm_fusion found apache-tvm-ffi 0.1.15" in program.stderr
