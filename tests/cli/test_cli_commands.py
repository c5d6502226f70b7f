"""What each command prints when all goes well, and its documented JSON."""

import contextlib
import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from tiny_models import dense, dense_data, dense_expected, dense_weights, onnx_model

import tvm_fusion
from tvm_fusion.cli.commands import run
from tvm_fusion.cli.dispatch import COMMANDS, _parser
from tvm_fusion.cli.inputs import not_finite, not_finite_line
from tvm_fusion.cli.model import config_of
from tvm_fusion.cli.notes import Notes
from tvm_fusion.core.progress import listening


def object_of(result, code=0):
    assert result.code == code
    assert result.err == ""
    return json.loads(result.out, parse_constant=pytest.fail)  # no NaN, no Infinity


def test_compile(cli, dense_file, tmp_path):
    folder = tmp_path / "new" / "dense"
    found = object_of(cli("compile", dense_file, "-o", folder, "--dim", "batch=1..4", "--json"))
    assert set(found) == {
        "artifact", "cached", "target", "seconds", "peak_rss_mb", "kernels", "calls", "workers",
        "precision", "precisions", "intermediate_bytes", "architectures", "profile",
        "not_fused", "not_recomposed", "explain", "fallbacks", "files",
    }  # fmt: skip
    assert found["explain"] == f"tvm-fusion explain {dense_file} --dim batch=1..4"
    assert found["seconds"] > 0
    assert found["peak_rss_mb"] > 10
    assert found["kernels"] >= 1
    assert found["artifact"] == str(folder)
    assert found["files"] == {
        name: (folder / name).stat().st_size for name in ("model.so", "weights.bin")
    }
    assert tvm_fusion.load(folder)(data=dense_data(3))["scores"].shape == (3, 32)


def test_compile_takes_all_its_options(cli, dense_file, tmp_path):
    result = cli(
        "compile", dense_file, "--output", tmp_path / "a [b]", "--dim", "batch=2", "--target",
        "cpu", "--precision", "fp32", "--static-input", "data", "--dump",
        tmp_path / "dump", "--rewrite", "greedy", "--allow", "reassociate,approximate",
        "--fast-math", "--without-rule", "factor_one", "--without-rule", "join_matmuls",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{tmp_path}/a [b] for cpu:")
    assert len(result.out.splitlines()) == 1
    assert sorted(path.name for path in (tmp_path / "dump").iterdir())[0] == "0_frontend.py"


def test_run(cli, dense_folder):
    found = object_of(cli("run", dense_folder, "--json", "--repeat", 3))
    assert set(found) == {"latency_ms", "throughput", "repeat", "threads", "dims", "outputs"}
    latency = found["latency_ms"]
    assert set(latency) == {"min", "mean", "median", "p90", "p99", "max"}
    in_order = [0, *(latency[name] for name in ("min", "median", "p90", "p99", "max"))]
    assert in_order == sorted(in_order)
    assert latency["min"] <= latency["mean"] <= latency["max"]
    assert found["repeat"] == 3
    assert 0 < found["throughput"] <= 1.001e3 / latency["mean"]
    assert found["threads"] >= 1
    assert found["outputs"]["scores"]["shape"] == [1, 32]
    assert found["outputs"]["scores"]["std"] > 0


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Where the machine's rates are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_run_as_long_as_is_asked(cli, dense_folder, monkeypatch):
    seconds = itertools.count(step=0.25)  # each look at the clock
    monkeypatch.setattr(run.time, "perf_counter", lambda: next(seconds))
    found = object_of(cli("run", dense_folder, "--json", "--duration", "2s", "--warmup", 0))
    assert found["repeat"] == 4  # two looks each
    assert found["latency_ms"]["p99"] == 250


def test_run_and_profile_take_threads(cli, dense_folder, monkeypatch, own_cache):
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    for command in ("run", "profile"):
        found = object_of(cli(command, dense_folder, "--json", "--threads", 3, "--repeat", 1))
        assert found["threads"] == 3
        for count in ("0", "257"):
            assert (
                f"--threads {count}; expected 1 to 256"
                in cli(command, dense_folder, "--threads", count).sentence
            )


def test_profile(cli, dense_folder, tmp_path, own_cache):
    trace = tmp_path / "trace.json"
    arguments = ("--dim", "batch=4", "--repeat", 2, "--warmup", 1)
    found = object_of(cli("profile", dense_folder, "--json", *arguments, "--trace", trace))
    assert (found["extents"], found["runs"]) == ({"batch": 4}, 2)
    (row,) = found["rows"]
    assert row["title"] == "matmul + add + relu"
    assert [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"] == [
        "main", row["title"],
    ]  # fmt: skip
    result = cli("profile", dense_folder, *arguments, "--all")
    assert (result.code, result.err) == (0, "")
    assert ", batch=4\n" in result.out
    shown = " ".join(result.out.split())
    for part in ("matmul + add +", "by contraction", "mr=", "MFLOP", "outside of kernels"):
        assert part in shown
    assert "mr=" not in cli("profile", dense_folder, *arguments).out


def test_run_and_check_compile_a_model(cli, dense_file):
    result = cli("run", dense_file, "--dim", "batch=3", "--json")
    assert object_of(result)["outputs"]["scores"]["shape"] == [3, 32]
    assert "give --dim batch=VALUE" in cli("run", dense_file).sentence
    assert object_of(cli("check", dense_file, "--dim", "batch=3", "--json"))["passed"]


def test_run_and_check_say_at_which_extents(cli, dense_folder, dense_file):
    """A time of one row says nothing of eight: who did not choose is told, and how to choose."""
    for command in (["run", dense_folder], ["check", dense_folder, dense_file]):
        assert object_of(cli(*command, "--json"))["dims"] == {
            "batch": {"extent": 1, "min": 1, "max": 8}
        }
        line = "  at batch=1 (of 1..8), the smallest; others: --dim batch=8\n"
        assert line in cli(*command).out
        assert "  at batch=5 (of 1..8)\n" in cli(*command, "--dim", "batch=5").out


def test_run_and_check_warn_of_what_is_no_number(cli, dense_folder, dense_file, tmp_path):
    data = dense_data(2)
    data[1, 3] = np.nan
    np.save(tmp_path / "x.npy", data)
    given = "--input", f"data={tmp_path}/x.npy"
    found = object_of(cli("run", dense_folder, *given, "--json"))
    assert (found["outputs"]["scores"]["nan"], found["outputs"]["scores"]["inf"]) == (32, 0)
    for command in (["run", dense_folder], ["check", dense_folder, dense_file]):
        assert "  warning: scores: 32 NaN of 64 values\n" in cli(*command, *given).out
        assert "warning" not in cli(*command).out


def test_infinities_of_every_type_are_counted():
    for dtype in ("float16", "float32", "float64", "complex64", "bfloat16"):
        values = np.array([1, np.inf, -np.inf, np.nan], "float32").astype(dtype)
        assert not_finite(values) == {"nan": 1, "inf": 2}
        assert not_finite_line("y", not_finite(values), 4) == "y: 1 NaN and 2 infinite of 4 values"
    assert not_finite(np.zeros(3, "int8")) == {"nan": 0, "inf": 0}


def test_check_passes(cli, dense_folder, dense_file):
    found = object_of(cli("check", dense_folder, dense_file, "--dim", "batch=7", "--json"))
    assert set(found) == {
        "passed", "max_abs_error", "max_rel_error", "tolerance", "reference", "outputs", "dims",
        "not_finite",
    }  # fmt: skip
    assert found["passed"] is True
    assert found["max_rel_error"] <= found["tolerance"] == 1e-4
    assert set(found["outputs"]["scores"]) == {"max_abs_error", "max_rel_error", "std"}
    assert found["outputs"]["scores"]["std"] > 1e-3


def test_check_does_not_pass(cli, dense_folder, tmp_path):
    onnx.save(dense(seed=3), tmp_path / "other.onnx")
    found = object_of(cli("check", dense_folder, tmp_path / "other.onnx", "--json"), code=1)
    assert found["passed"] is False
    assert found["max_rel_error"] > found["tolerance"]
    shown = cli("check", dense_folder, tmp_path / "other.onnx")
    assert shown.code == 1
    assert "failed against ONNX Runtime (tolerance 0.0001)" in shown.out
    wide = cli("check", dense_folder, tmp_path / "other.onnx", "--tolerance", "10")
    assert wide.code == 0


def test_an_infinite_error_is_valid_json(cli, dense_folder, tmp_path):
    model = dense()
    bias = dense_weights()["bias"] + np.inf
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(bias, "bias"))
    onnx.save(model, tmp_path / "infinite.onnx")
    found = object_of(cli("check", dense_folder, tmp_path / "infinite.onnx", "--json"), code=1)
    assert found["max_abs_error"] is None
    assert found["passed"] is False


def test_inspect(cli, dense_folder):
    found = object_of(cli("inspect", dense_folder, "--json"))
    assert {"target", "kernels", "intermediate_bytes", "files", "functions", "dims"} <= set(found)
    assert found["files"]["model.so"]["bytes"] == (dense_folder / "model.so").stat().st_size
    assert "verified" not in found
    assert object_of(cli("inspect", dense_folder, "--json", "--verify"))["verified"] is True
    shown = cli("inspect", dense_folder, "--verify").out
    for words in ("data: float32 (batch, 64)", "dim      batch: 1 to 8", "verified", "model.so"):
        assert words in shown


def test_doctor(cli):
    found = object_of(cli("doctor", "--json"))
    assert set(found["findings"][0]) == {"topic", "ok", "found", "advice"}
    assert {"tvm", "c compiler", "run on cpu"} <= {entry["topic"] for entry in found["findings"]}


def test_doctor_shows_brackets(cli, monkeypatch):
    monkeypatch.setattr(
        COMMANDS["doctor"],
        "run",
        lambda options: {
            "findings": [
                {
                    "topic": "t",
                    "ok": False,
                    "found": "f",
                    "advice": 'pip install "tvm_fusion[cuda]"',
                }
            ]
        },
    )
    assert 'pip install "tvm_fusion[cuda]"' in cli("doctor").out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_the_common_options(cli, command):
    text = cli(command, "--help")
    assert text.code == 0
    assert "--json" in text.out
    assert "--debug" in text.out


@pytest.fixture(scope="module")
def odd_names(tmp_path_factory):
    """Inputs and outputs called like options, markup and numpy's own parameters."""
    place = tmp_path_factory.mktemp("odd")
    model = onnx_model(
        [
            ("Add", ["a/b:0[/]", "self"], ["file"]),
            ("Identity", ["file"], ["[bold]/out"]),
        ],
        [("a/b:0[/]", T.FLOAT, ["n"]), ("self", T.BFLOAT16, ["n"])],
        [("file", T.FLOAT, ["n"]), ("[bold]/out", T.FLOAT, ["n"])],
    )
    cast = onnx.helper.make_node("Cast", ["self"], ["cast"], to=T.FLOAT)
    model.graph.node.insert(0, cast)
    model.graph.node[1].input[1] = "cast"
    artifact = tvm_fusion.compile(model, dims={"n": tvm_fusion.DimRange(1, 9)})
    return artifact.export(place / "odd")


def test_names_that_are_no_identifiers(cli, odd_names, tmp_path):
    import ml_dtypes

    x = np.arange(4, dtype="float32")
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", **{"a/b:0[/]": x, "self": x.astype(ml_dtypes.bfloat16)})
    result = cli("run", odd_names, "--inputs", tmp_path / "all.npz", "--output", tmp_path / "y.npz")
    assert (result.code, result.err) == (0, "")
    assert "  [bold]/out: float32 (4,)" in result.out
    written = np.load(tmp_path / "y.npz")
    assert sorted(written) == ["[bold]/out", "file"]
    np.testing.assert_array_equal(written["file"], 2 * x)
    assert "a/b:0[/]: float32 (n)" in cli("inspect", odd_names).out
    # The random array takes the extent of the one that is given.
    found = object_of(cli("run", odd_names, "--input", f"a/b:0[/]={tmp_path}/x.npy", "--json"))
    assert found["outputs"]["file"]["shape"] == [4]


def test_outputs_of_chosen_inputs(cli, dense_folder, tmp_path):
    data = dense_data(5)
    np.save(tmp_path / "data.npy", data)
    arguments = ("run", dense_folder, "--input", f"data={tmp_path}/data.npy", "--output")
    assert cli(*arguments, tmp_path / "y.npz", "--warmup", 0, "--repeat", 1).code == 0
    written = np.load(tmp_path / "y.npz")["scores"]
    assert np.abs(written - dense_expected(data, **dense_weights())).max() < 1e-4


def test_seeds_make_inputs(cli, dense_folder):
    means = [
        object_of(cli("run", dense_folder, "--seed", seed, "--json"))["outputs"]["scores"]["mean"]
        for seed in (0, 0, 1)
    ]
    assert means[0] == means[1] != means[2]


@pytest.mark.slow
def test_the_program_itself(dense_folder, tmp_path):
    command = [sys.executable, "-m", "tvm_fusion.cli"]
    done = subprocess.run([*command, "run", dense_folder, "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["repeat"] == 10
    wrong = subprocess.run([*command, "inspect", tmp_path], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.count("\n") == 1


def test_notes_are_a_few_lines():
    from tvm_fusion.cli.notes import Notes, lines

    def decision(n, verdict, consumer="", classes=(), sentence="Why."):
        return {
            "producer": f"lv{n}", "consumer": consumer, "verdict": verdict, "classes": classes,
            "sentence": sentence,
        }  # fmt: skip

    edges = [decision(n, "refused", f"lv{n + 1}", ["Shuffle", "Shuffle"]) for n in range(100)]
    misses = [decision(1, "refused", "attention")]
    alike = [decision(n, "fallback") for n in range(9)]
    others = [decision(n, "fallback", sentence=f"Why {n}.") for n in range(9)]
    notes = Notes.of([*edges, edges[0], *misses, *alike, *others])
    assert (notes.not_fused, notes.not_recomposed, len(notes.others)) == (100, 1, 18)
    text = lines(notes, "command")
    assert text[0] == (
        "100 pairs of operators not fused, 1 pattern not recomposed (--rewrites); reasons: command"
    )
    assert text[1] == "lv0 and 8 more: Why."
    assert text[-1] == "5 other notes: see --json"
    assert len(text) == 7
    assert lines(Notes.of([]), "command") == []


def test_version(cli):
    result = cli("--version")
    assert result.code == 0
    assert result.out.startswith(f"tvm-fusion {tvm_fusion.__version__} (apache-tvm 0.27.0.post1, ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_all_commands_and_options(cli, shell):
    result = cli("completion", shell)
    assert (result.code, result.err) == (0, "")
    for word in (*COMMANDS, "precision", "without-rule"):
        assert word in result.out
    if shell == "bash":  # the one that every machine has
        text = result.out + "\nCOMP_WORDS=(tvm-fusion compile --prec); COMP_CWORD=2"
        text += "\n_shtab_tvm_fusion; echo ${COMPREPLY[0]}"
        said = subprocess.run(["bash"], input=text, capture_output=True, text=True)
        assert said.stdout.strip() == "--precision", said.stderr


def test_help_has_the_exit_codes(cli):
    shown = " ".join(cli("--help").out.split())
    assert "0 success; 1 a comparison did not pass; 2 a mistake" in shown
    page = (Path(__file__).parents[2] / "docs/reference/exit_codes.md").read_text()
    listed = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    assert all(f"{code} " in shown.partition("Exit codes: ")[2] for code in listed)
    assert len(listed) == 6


def test_inspect_repeats_the_command_that_explains(cli, dense_file, tmp_path):
    options = ["--dim", "batch=2..8:2", "--precision", "bf16", "--half-io", "--without-rule",
               "join_matmuls", "--allow", "reassociate", "--target", "cpu:x86-64-v3"]  # fmt: skip
    made = object_of(cli("compile", dense_file, "-o", tmp_path / "a", *options, "--json"))
    found = object_of(cli("inspect", tmp_path / "a", "--json"))["explain"]
    assert found == made["explain"].replace(str(dense_file), "dense.onnx")  # it may have moved
    assert f"explain  {found}\n" in cli("inspect", tmp_path / "a").out
    command, name, *arguments = shlex.split(found)
    again = _parser().parse_args([name, *arguments])
    assert (command, again.model, again.target) == ("tvm-fusion", "dense.onnx", "cpu:x86-64-v3")
    compiled = _parser().parse_args(["compile", str(dense_file), "-o", "a", *options])
    assert config_of(again) == config_of(compiled)


def test_an_artifact_of_no_file_has_no_command(cli, tmp_path):
    tvm_fusion.compile(dense(), dims={"batch": 1}).export(tmp_path / "a")
    assert object_of(cli("inspect", tmp_path / "a", "--json"))["explain"] is None


def test_what_a_flag_would_allow_is_no_note():
    refused = {"producer": "c", "consumer": "", "verdict": "refused", "classes": []}
    notes = Notes.of([{**refused, "code": "needs_flag"}, {**refused, "code": "no_winograd"}])
    assert [d["code"] for d in notes.others] == ["no_winograd"]


@pytest.mark.parametrize(
    ("options", "quiet"), [([], False), (["--quiet"], True), (["-q"], True), (["--json"], True)]
)
def test_progress_is_shown_unless_it_may_disturb(
    cli, dense_folder, dense_file, monkeypatch, options, quiet
):
    found = []

    @contextlib.contextmanager
    def progress(file, *, quiet):
        found.append(quiet)
        yield

    monkeypatch.setattr("tvm_fusion.report.progress.progress", progress)
    assert cli("check", dense_folder, dense_file, *options).code == 0
    assert found == [quiet]


def test_check_and_bundle_tell_their_stages(cli, dense_folder, dense_file, tmp_path, monkeypatch):
    told = []

    @contextlib.contextmanager
    def progress(file, *, quiet):
        with listening(lambda stage: told.append(stage.name)):
            yield

    monkeypatch.setattr("tvm_fusion.report.progress.progress", progress)
    assert cli("check", dense_folder, dense_file).code == 0
    assert told == [
        "loading the artifact", "running the artifact", "running the reference",
        "comparing outputs",
    ]  # fmt: skip
    told.clear()
    monkeypatch.setattr("tvm_fusion.deploy.build.bundle._call", lambda *_, **__: None)
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert cli("bundle", dense_folder, "-o", tmp_path / "bundle").code == 0
    assert told == ["configuring the runner", "compiling the runner", "copying libraries"]
