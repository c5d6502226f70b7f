"""Arguments and surroundings that nobody means: one sentence, no traceback, nothing left behind."""

import os
import subprocess
import sys

import numpy as np
import pytest
from tiny_models import dense_data

TOO_LONG = "n" * 300


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "{a}", "--input=--"], "argument --input: expected a value and not '--'"),
        (["run", "{a}", "--dim=--"], "argument --dim: expected a value and not '--'"),
        (["run", "{a}", "--dim", "batch=99999999"], "--dim batch=99999999; expected 1 to 8"),
        (["run", "{a}", "--dim", "batch=" + "9" * 5000], "expected NAME=EXTENT, NAME=LOW..HIGH"),
        (["run", "{a}", "--seed", "9" * 5000], "argument --seed: invalid int value"),
        (["run", "{a}", "--input", "data={pipe}"], "pipe' is not a regular file; expected a numpy"),
        (["run", "{a}", "--inputs", "{pipe}"], "pipe' is not a regular file; expected a numpy"),
        (["run", "{a}", "--input", "data=" + TOO_LONG], "(File name too long)"),
        (["run", "{a}", "--output", "{here}/" + TOO_LONG], "(File name too long)"),
        (["run", TOO_LONG], "(File name too long)"),
        (["compile", "{m}", "-o", "{here}/" + TOO_LONG], "(File name too long)"),
        (["compile", "{m}", "-o", "{loop}", "--dim", "batch=1"], "loop"),
        (["compile", TOO_LONG, "-o", "{here}/out"], "(File name too long)"),
        (["compile", "{loop}", "-o", "{here}/out"], "loop"),
        (["tune", "--db", "{here}/r.db", "--import", "{pipe}"], "pipe' is not a regular file"),
        (["tune", "--db", "{pipe}", "--list"], "pipe"),
        (["inspect", "{loop}"], "loop"),
        (["check", "{a}"], "was compiled from; `tvm-fusion check {a} MODEL`; it was called"),
        (["explain", "{a}"], "{a} is an artifact; expected the model that it was compiled from"),
        (["explain", "{here}"], "is a folder; expected an ONNX file; it holds none; check"),
        (["explain", "{models}"], "expected an ONNX file; name {m}."),
        (["runn", "{a}"], "did you mean run?"),
        (["run", "a\udcff"], "there is no folder 'a\\udcff'"),
    ],
)
def test_one_sentence(cli, dense_folder, dense_file, tmp_path, arguments, words):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    places = {"a": dense_folder, "m": dense_file, "here": tmp_path, "models": dense_file.parent}
    places |= {name: tmp_path / name for name in ("pipe", "loop")}
    found = cli(*[argument.format(**places) for argument in arguments]).sentence
    assert words.format(**places) in found
    assert sorted(tmp_path.iterdir()) == before


LINES = {
    "deep": b"[" * 100_000,
    "not UTF-8": b"\xff\xfe",
    "NUL": b"\0",
    "number": b"1",
    "huge": b'{"key": ' + b"9" * 10_000 + b"}",
    "no texts": b'{"key": {"structure": 1}, "title": "", "trials": [], "tuned": null}',
    "infinite": b'{"key": {"structure": "", "dtypes": "", "shapes": "", "device": "", '
    b'"versions": ""}, "title": "", "trials": [[{}, 1e999, 1, ""]], "tuned": null}',
    "lists": b'{"key": {"structure": "", "dtypes": "", "shapes": "", "device": "", '
    b'"versions": ""}, "title": "", "trials": [[[], 1, 1, ""]], "tuned": null}',
    "objects": b'{"key": {"structure": "", "dtypes": "", "shapes": "", "device": "", '
    b'"versions": ""}, "title": {}, "trials": {"a": 1}, "tuned": []}',
}


@pytest.mark.parametrize("case", LINES)
def test_lines_that_are_no_records(cli, tmp_path, case):
    (tmp_path / "lines").write_bytes(LINES[case])
    result = cli("tune", "--db", tmp_path / "r.db", "--import", tmp_path / "lines")
    assert "lines'" in result.sentence
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


def process(*arguments, **options):
    command = [sys.executable, "-m", "tvm_fusion.cli", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, **options)


def test_nobody_reads_the_results(dense_folder):
    reading, writing = os.pipe()
    os.close(reading)
    done = process("inspect", dense_folder, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_results_that_cannot_be_written(dense_folder):
    with open("/dev/full", "wb") as full:
        done = process("inspect", dense_folder, stdout=full)
    message = b"tvm-fusion: cannot write the results (No space left on device).\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_a_terminal_that_knows_ascii_alone(dense_copy):
    folder = dense_copy.rename(dense_copy.with_name("d\u00e9nse"))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = process("inspect", folder, "--verify", stdout=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupted_output_leaves_the_old_file(cli, dense_folder, tmp_path, monkeypatch):
    """A link is followed; nothing but the file itself is there afterwards."""
    (tmp_path / "real.npz").write_text("mine")
    (tmp_path / "out.npz").symlink_to("real.npz")
    np.save(tmp_path / "data.npy", dense_data(2))
    arguments = ("run", dense_folder, "--repeat", "1", "--output", tmp_path / "out.npz")
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", _interrupt)
        assert cli(*arguments).code == 130
    assert (tmp_path / "real.npz").read_text() == "mine"
    assert cli(*arguments).code == 0
    assert np.load(tmp_path / "real.npz")["scores"].shape == (1, 32)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"real.npz", "out.npz", "data.npy"}


def _interrupt(*_):
    raise KeyboardInterrupt
