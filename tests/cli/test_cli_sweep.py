"""Every command with every kind of wrong argument: one sentence, exit code 2, nothing left."""

import ctypes
import os
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

NO_SUCH = "none"
TOO_LONG = "n" * 300


def _places(place):
    """Make one of everything that a path may wrongly name."""
    (place / "folder").mkdir()
    (place / "empty").write_bytes(b"")
    (place / "text").write_text("this is a text about models\n" * 9)
    (place / "text.onnx").write_text("this is a text about models\n" * 9)
    (place / "text.pt2").write_text("this is a text about models\n" * 9)
    (place / "loop").symlink_to(place / "loop")
    (place / "dangling").symlink_to(place / NO_SUCH)
    os.mkfifo(place / "pipe")
    nothing = onnx_model([], [("x", T.FLOAT, [3])], [])
    onnx.save(nothing, place / "no_outputs.onnx")
    nothing.ClearField("graph")
    (place / "no_graph.onnx").write_bytes(nothing.SerializeToString())
    np.save(place / "nan.npy", np.full((1, 3), np.nan, "float32"))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    place = tmp_path_factory.mktemp("places")
    _places(place)
    return place


MODELS = {
    "compile": ["{bad}", "-o", "{here}/out"],
    "explain": ["{bad}"],
    "bisect": ["{bad}"],
    "check": ["{a}", "{bad}"],
}
ARTIFACTS = {
    "run": ["{bad}"],
    "inspect": ["{bad}"],
    "bundle": ["{bad}", "-o", "{here}/out"],
    "check": ["{bad}", "{m}"],
}
BAD = [
    *("", NO_SUCH, "folder", "empty", "text", "text.onnx", "text.pt2", "loop", "dangling", "pipe"),
    *("text/inside", "no_outputs.onnx", "no_graph.onnx", TOO_LONG),
]
CASES = [
    pytest.param(name, arguments, bad, id=f"{name}-{kind}-{bad[:16] or 'nothing'}")
    for kind, commands in (("model", MODELS), ("artifact", ARTIFACTS))
    for name, arguments in commands.items()
    for bad in BAD
    if (name, kind, bad) != ("check", "model", "no_outputs.onnx")  # the reference computes nothing
]


@pytest.fixture
def refused(cli, dense_folder, dense_file, places, tmp_path):
    """Run a command that has to be refused, and see that nothing has changed."""

    def call(name, arguments, bad=""):
        bad = str(places / bad) if bad else ""
        names = {"a": dense_folder, "m": dense_file, "here": tmp_path, "there": places, "bad": bad}
        folders = (tmp_path, places, dense_folder, dense_file.parent)
        before = [sorted(folder.rglob("*")) for folder in folders]
        sentence = cli(name, *[argument.format(**names) for argument in arguments]).sentence
        assert [sorted(folder.rglob("*")) for folder in folders] == before
        return sentence

    return call


@pytest.mark.parametrize(("name", "arguments", "bad"), CASES)
def test_what_is_no_model_and_no_artifact(refused, name, arguments, bad):
    refused(name, arguments, bad)


ONE = ["--dim", "batch=1"]
COMPILE = ["{m}", "-o", "{here}/out", *ONE]
TUNE = ["{m}", "--db", "{here}/r.db", *ONE]
NUMBERS = ["nan", "inf", "-1", "1e999", "", "many", "0x10", "1_0", "9" * 5000]
TIMED = ("run", "profile")
OPTIONS = [
    *((c, ["{a}", "--repeat", n]) for c in TIMED for n in ("0", *NUMBERS) if n != "1_0"),
    *((c, ["{a}", "--warmup", n]) for c in TIMED for n in NUMBERS if n != "1_0"),
    *((c, ["{a}", "--threads", n]) for c in TIMED for n in ("0", *NUMBERS) if n != "1_0"),
    *(("run", ["{a}", "--duration", n]) for n in ("0", "-1", "nan", "inf", "", "long", "1sm")),
    ("run", ["{a}", "--duration", "1", "--repeat", "2"]),
    ("profile", ["{a}", "--function", "other"]),
    ("profile", ["{a}", "--trace", "{there}/none/trace.json"]),
    ("profile", ["{a}", "--trace", "{there}/folder"]),
    *(("profile", ["{a}", "--html", n]) for n in ("", "{there}/none/page.html", TOO_LONG)),
    *(("explain", ["{m}", *ONE, "--html", n]) for n in ("", "{there}/folder", "{there}/text/x")),
    *(("explain", ["{m}", *ONE, "--html", "{here}/x", "--times", n]) for n in ("", "{there}/text")),
    *(("run", ["{a}", "--seed", n]) for n in NUMBERS if n != "1_0"),
    *(("run", ["{a}", f"--dim=batch={n}"]) for n in ("0", "1..", "..", "1..0", *NUMBERS)),
    *(("compile", ["{m}", "-o", "{here}/out", f"--dim=batch={n}"]) for n in ("1..0", *NUMBERS)),
    *(("compile", ["{m}", "-o", "{here}/out", f"--dim={n}"]) for n in ("", "=", "=1", "batch")),
    *(("bisect", ["{m}", *ONE, "--tolerance", n]) for n in ("nan", "-1", "", "many")),
    *(("check", ["{a}", "{m}", "--tolerance", n]) for n in ("nan", "-1", "", "many")),
    *(("bisect", ["{m}", *ONE, "--seed", n]) for n in ("nan", "-1", "", "9" * 5000)),
    *(("tune", [*TUNE, "--seed", n]) for n in ("nan", "", "9" * 5000)),
    *(("tune", [*TUNE, "--budget", n]) for n in ("0", "trials=0", "trials=nan", *NUMBERS)),
    *(("tune", [*TUNE, "--runner", n]) for n in ("", "rpc://", "rpc://x:-1", "ftp://x", "none")),
    *(("tune", [*TUNE, "--export-candidates", n]) for n in ("{there}/text", "{there}/pipe/x")),
    *(("tune", ["--db", n, "--list"]) for n in ("{there}/folder", "{there}/pipe", TOO_LONG)),
    *(("tune", ["--db", n, "--list"]) for n in ("{there}/text", "{there}/text/x", "{there}/loop")),
    *(("tune", ["--db", "{there}/text", option]) for option in ("--list", "--prune")),
    *(("tune", ["--db", "{here}/r.db", "--import", n]) for n in ("{there}/none", "{there}/folder")),
    *(("tune", ["--db", "{here}/r.db", "--export", n]) for n in ("{there}/folder", "/proc/x")),
    *((name, arguments[:1]) for name, arguments in (("compile", COMPILE), ("bundle", ["{a}"]))),
    *(("compile", [*COMPILE, "--target", n]) for n in ("", "cuda:", "cpu:", "cpu:x y", "\n", "é")),
    *(("compile", [*COMPILE, "--precision", n]) for n in ("", "fp64", "FP32")),
    *(("compile", [*COMPILE, "--db", n]) for n in ("{there}/folder", "{there}/text", "/proc/x/y")),
    *(("compile", [*COMPILE, "--dump", n]) for n in ("{there}/text", "/proc/x")),
    *(("compile", [*COMPILE, "--constant", n]) for n in ("", "=", "x", "none=1", "data=")),
    *(("compile", [*COMPILE, "--static-input", n]) for n in ("", "none", "data,none")),
    *(("compile", [*COMPILE, f"--allow={n}"]) for n in ("all,", "none")),
    *(("compile", [*COMPILE, f"--without-rule={n}"]) for n in ("", "none")),
    *(("compile", ["{m}", "-o", n, *ONE]) for n in ("", "/proc/x", "{there}/text", "{there}")),
    *(("compile", ["{m}", "-o", n, *ONE]) for n in ("{there}/pipe", "{there}/loop", "/dev/null")),
    *(("bundle", ["{a}", "-o", n]) for n in ("", "/proc/x", "{there}/text", "{there}", "{a}")),
    *(("bundle", ["{a}", "-o", n]) for n in ("{there}/loop/x", "{there}/text/x", "/dev/null")),
    *(("run", ["{a}", "--output", n]) for n in ("/proc/x", "{there}/folder", "{there}/loop")),
    *(("run", ["{a}", "--input", n]) for n in ("", "=", "data", "data=", "none={there}/nan.npy")),
    *(("run", ["{a}", "--inputs", n]) for n in ("{there}/nan.npy", "{there}/folder")),
    ("run", ["{a}", "--input", "data={there}/nan.npy"]),
    *(("explain", ["{m}", *ONE, "--op", n]) for n in ("", "none", "[", "\n")),
    *((name, ["--frobnicate"]) for name in ("doctor", "inspect", "tune", "bundle", "bisect")),
    ("doctor", ["more"]),
    ("tune", ["{m}"]),
    ("tune", ["{m}", "--db", ""]),
]


@pytest.mark.parametrize(("name", "arguments"), OPTIONS, ids=lambda value: str(value)[:70])
def test_options_that_nobody_means(refused, monkeypatch, name, arguments):
    monkeypatch.delenv("TVM_FUSION_RECORDS", raising=False)
    refused(name, arguments)


@pytest.fixture
def modes_count():
    """Let the modes of files count for root, too, on the thread that calls commands."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, and their upper halves
    assert libc.capget(header, sets) == 0
    effective = sets[0]
    sets[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    yield
    sets[0] = effective
    assert libc.capset(header, sets) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.usefixtures("modes_count")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("compile", ["{m}", "-o", "{here}/closed/out", *ONE]),
        ("compile", ["{here}/closed/m.onnx", "-o", "{here}/out", *ONE]),
        ("tune", ["{m}", "--db", "{here}/closed/r.db", *ONE]),
        ("bundle", ["{a}", "-o", "{here}/closed/out"]),
        ("run", ["{a}", "--output", "{here}/closed/out.npz"]),
        ("inspect", ["{here}/closed/a"]),
    ],
)
def test_without_permission(cli, dense_folder, dense_file, tmp_path, name, arguments):
    closed = tmp_path / "closed"
    closed.mkdir(0o000)
    names = {"a": dense_folder, "m": dense_file, "here": tmp_path}
    try:
        assert "ermi" in cli(name, *[argument.format(**names) for argument in arguments]).sentence
    finally:
        closed.chmod(0o700)
    assert not list(closed.iterdir())
