import importlib.util
import json
import os
import re
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import records, zoo
from benchmarks.harness import __main__ as command_line
from benchmarks.harness import arrays, measure, session, table
from benchmarks.harness.client import Client, EngineError
from benchmarks.harness.engines import ENGINES, resolve
from benchmarks.harness.measure import Settings

QUICK = Settings(rounds=3, budget=0.02, settle=0.0)


@pytest.fixture(autouse=True)
def _fakes_can_be_imported_by_workers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def doubling_model() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 5]) for n in ("x/0", "file"))
    graph = helper.make_graph([helper.make_node("Add", ["x/0", "x/0"], ["file"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def doubling_inputs(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x/0": np.random.default_rng(seed).standard_normal((3, 5), np.float32)}


def measure_fakes(names, tmp_path, **changes):
    options = {"settings": QUICK, "threads": 1, "seed": 0, "timeout": 600.0, **changes}
    return session.measure_model(
        "doubling",
        doubling_model(),
        doubling_inputs(),
        {name: f"fake_engines:{name}" for name in names},
        folder=tmp_path,
        **options,
    )


# Worker processes


@pytest.mark.slow
def test_a_peer_of_a_half_type_has_its_own_tolerance(tmp_path, monkeypatch):
    monkeypatch.setitem(session.TOLERANCES, "wrong", 1e-2)
    assert measure_fakes(["wrong"], tmp_path)["peers"]["wrong"]["status"] == "right"


@pytest.mark.slow
def test_each_kind_of_failure_is_reported_and_not_timed(tmp_path):
    names = ["right", "wrong", "raising", "crashing", "leaving", "failing_when_timed"]
    lines = []
    result = measure_fakes([*names, "unavailable"], tmp_path, progress=lines.append)
    peers = result["peers"]
    assert {name: peer["status"] for name, peer in peers.items()} == {
        "right": "right",
        "wrong": "wrong",
        "raising": "failed",
        "crashing": "failed",
        "leaving": "failed",
        "failing_when_timed": "failed",
        "unavailable": "unavailable",
    }
    assert peers["wrong"]["error"] == pytest.approx(0.005, rel=1e-3)
    assert peers["wrong"]["reason"] == "relative error 5.0e-03; allowed 1e-04"
    assert peers["raising"]["reason"] == "ValueError: no kernel for operator Foo"
    assert peers["crashing"]["reason"].startswith("process ended: killed by SIGSEGV")
    assert "exit code 3 (terminate called: out of luck)" in peers["leaving"]["reason"]
    assert peers["failing_when_timed"]["reason"] == "MemoryError: not this time"
    assert peers["unavailable"]["reason"] == "doubling has no such form"
    assert {name for name, peer in peers.items() if "latency_ms" in peer} == {"right"}
    assert {name for name, peer in peers.items() if "round_ms" in peer} == {
        "right",
        "failing_when_timed",
    }
    right = peers["right"]
    assert right["error"] == 0
    assert right["versions"] == {"fake": "1.0"}
    assert len(right["round_ms"]) == QUICK.rounds
    assert any("wrong: wrong relative error" in line for line in lines)


def test_workers_get_the_threads_asked_for_and_no_more_cpus(tmp_path):
    facts = measure_fakes(["right"], tmp_path)["peers"]["right"]["facts"]
    assert facts["threads"] == "1"
    assert facts["cpus"] == 1


class Hurried(Client):
    """Has a time limit where the engine hangs, and hardly one for what takes its time."""

    def outputs(self):
        if self._engine.endswith("hanging"):
            self._timeout = 0.5
        return super().outputs()


def test_engine_over_the_time_limit_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "Client", Hurried)
    options = {"default_reference": "fake_engines:right"}
    peers = measure_fakes(["hanging", "right"], tmp_path, **options)["peers"]
    assert peers["hanging"]["status"] == "failed"
    assert peers["hanging"]["reason"] == "outputs: over 0.5 s, stopped"
    assert peers["right"]["status"] == "right"


def test_without_a_reference_nothing_is_timed(tmp_path):
    result = measure_fakes(["right"], tmp_path, default_reference="fake_engines:raising")
    peer = result["peers"]["right"]
    assert peer["status"] == "failed"
    assert peer["reason"] == "reference: ValueError: no kernel for operator Foo"
    assert "latency_ms" not in peer


@pytest.mark.slow
def test_peer_with_a_reference_of_its_own(tmp_path):
    references = {"wrong": "fake_engines:wrong"}
    peers = measure_fakes(["right", "wrong"], tmp_path, references=references)["peers"]
    assert peers["wrong"]["status"] == "right"
    assert peers["wrong"]["reference"] == "fake_engines:wrong"
    assert peers["right"]["reference"].endswith("onnxruntime:unoptimized")


def test_every_engine_has_a_function():
    for path in ENGINES.values():
        module, _, function = path.partition(":")
        spec = importlib.util.find_spec(module)
        assert f"\ndef {function}(" in Path(spec.origin).read_text()


def test_missing_package_is_named():
    with pytest.raises(Exception, match=r"no_such_package is not installed"):
        resolve("no_such_package:prepare")


def small_network() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return convolution, ReLU, flatten, matmul on odd sizes; two outputs."""
    random = np.random.default_rng(7)
    weights = {
        "kernel": random.standard_normal((5, 3, 3, 3)).astype(np.float32),
        "dense": random.standard_normal((5 * 5 * 7, 11)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "dense"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 7, 9])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 11]),
            helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 5, 5, 7]),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return model, {"x": random.standard_normal((1, 3, 7, 9)).astype(np.float32)}


@pytest.mark.parametrize(
    "names",
    [
        ["ours", "onnxruntime"],
        pytest.param(["ours", "tvm", "tvm-default"], marks=pytest.mark.slow),
        pytest.param(
            ["openvino"],
            marks=pytest.mark.skipif(
                importlib.util.find_spec("openvino") is None, reason="needs the extra bench"
            ),
        ),
    ],
    ids="-".join,
)
@pytest.mark.slow
def test_real_engines_agree(names, tmp_path):
    model, inputs = small_network()
    result = session.measure_model(
        "network",
        model,
        inputs,
        session.choose(names),
        settings=QUICK,
        threads=1,
        seed=0,
        timeout=3000.0,
        folder=tmp_path,
    )
    for name in names:
        peer = result["peers"][name]
        assert peer["status"] == "right", peer["reason"]
        assert peer["versions"]
        assert min(peer["round_ms"]) > 0
    for name in {"ours", "tvm"} & set(names):
        facts = result["peers"][name]["facts"]
        assert facts["compile_seconds"] > 0
        assert facts["compile_peak_rss_mb"] > 10
        assert facts["kernels"] >= facts["calls"] > 0
        assert facts["intermediate_bytes"] >= 0


@pytest.mark.torch
@pytest.mark.slow
def test_torch_peers_run_the_module_of_the_zoo(tmp_path):
    result = session.measure_model(
        "bert_base",
        zoo.load("bert_base"),
        zoo.inputs("bert_base"),
        session.choose(["torch", "torch-compile", "onnxruntime"]),
        settings=QUICK,
        threads=1,
        seed=0,
        timeout=3000.0,
        folder=tmp_path,
    )
    assert {peer: r["status"] for peer, r in result["peers"].items()} == {
        "torch": "right",
        "torch-compile": "right",
        "onnxruntime": "right",
    }
    assert 0 < result["peers"]["torch-compile"]["error"] < 1e-4


# The measurement loop, on engines without a process


class Scripted:
    """Takes the given milliseconds per run and notes when it ran."""

    def __init__(self, name, ms, log, fails_in_turn=None):
        self.name, self.ms, self.log = name, ms, log
        self.fails_in_turn, self.turn = fails_in_turn, 0

    def time(self, warmup, runs):
        self.log.append((self.name, warmup, runs))
        self.turn += 1
        if self.turn == self.fails_in_turn:
            raise EngineError("failed", "gone")
        return [self.ms * self.turn] * runs


def timed(milliseconds, settings, fails=None):
    log = []
    engines = {
        name: Scripted(name, ms, log, (fails or {}).get(name)) for name, ms in milliseconds.items()
    }
    results = {
        name: {"status": "right", "reason": None, "estimate_ms": ms}
        for name, ms in milliseconds.items()
    }
    measure.time_interleaved(engines, results, settings)
    return results, log


def test_rounds_interleave_and_rotate():
    _, log = timed({"a": 10, "b": 10, "c": 10}, Settings(rounds=4, budget=0.1, settle=0))
    assert "".join(name for name, _, _ in log) == "abcbcacababc"


def test_runs_follow_the_speed():
    settings = Settings(budget=1.0, max_runs=100)
    assert measure.runs_in_turn(20.0, settings) == (5, 50)
    assert measure.runs_in_turn(300.0, settings) == (1, 3)
    assert measure.runs_in_turn(0.01, settings) == (10, 100)
    assert measure.runs_in_turn(0.0, settings) == (10, 100)
    assert measure.runs_in_turn(1500.0, settings) == (0, 1)


def test_slow_engine_sits_out_after_its_rounds():
    settings = Settings(rounds=5, budget=0.1, slow=3.0, slow_rounds=2, settle=0)
    results, log = timed({"slow": 19000.0, "quick": 50.0}, settings)
    assert results["slow"]["round_ms"] == [19000.0, 38000.0, None, None, None]
    assert results["slow"]["runs"] == 2
    assert results["slow"]["latency_ms"]["median"] == 28500.0
    assert [turn for turn in log if turn[0] == "slow"] == [("slow", 0, 1)] * 2
    assert None not in results["quick"]["round_ms"]


def test_medians_and_spread():
    results, _ = timed({"a": 2.0}, Settings(rounds=5, budget=0.01, settle=0))
    assert results["a"]["round_ms"] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert results["a"]["runs"] == 5 + 5 + 2 + 1 + 1
    assert results["a"]["latency_ms"] == {
        "min": 2.0,
        "p25": 4.0,
        "median": 6.0,
        "p75": 8.0,
        "max": 10.0,
    }


class Once(Scripted):
    def prepare(self, job):
        return {"versions": {}, "facts": {}}

    def outputs(self):
        self.log.append(("check", self.name))
        return {"y": np.ones(2)}, self.ms


def test_check_takes_its_estimate_from_a_second_run_unless_that_is_slow():
    log = []
    for ms in (100.0, 19000.0):
        result = measure.check(Once(str(ms), ms, log), {}, {"x": np.ones(2)}, Settings(slow=3.0))
        assert result["status"] == "right"
        assert result["estimate_ms"] == ms
    assert log == [("check", "100.0"), ("100.0", 0, 1), ("check", "19000.0")]


def test_engine_that_fails_between_rounds_has_no_latency_and_stops_nobody():
    settings = Settings(rounds=3, budget=0.01, settle=0)
    results, log = timed({"a": 2.0, "b": 2.0}, settings, fails={"a": 2})
    assert results["a"]["status"] == "failed"
    assert results["a"]["reason"] == "gone"
    assert "latency_ms" not in results["a"]
    assert results["b"]["latency_ms"]["median"] == 4.0
    assert [name for name, _, _ in log].count("a") == 2


def test_ratios_are_taken_round_by_round():
    results = {
        # The machine was three times slower in the second round: the ratio does not see it.
        "ours": {"status": "right", "round_ms": [1.0, 3.0, 1.0]},
        "peer": {"status": "right", "round_ms": [2.0, 6.0, 2.0]},
        "slow": {"status": "right", "round_ms": [10.0, None, None]},
        "wrong": {"status": "wrong"},
    }
    found = measure.ratios(results)
    assert found.keys() == {"peer", "slow"}
    assert found["peer"] == dict.fromkeys(("min", "p25", "median", "p75", "max"), 0.5)
    assert found["slow"]["median"] == 0.1
    assert measure.ratios({"peer": results["peer"]}) == {}


# Comparison


def test_relative_error_is_the_worst_output():
    expected = {"a": np.array([1.0, -4.0]), "b": np.array([[10.0]])}
    found = {"p": np.array([1.0, -4.4]), "q": np.array([[10.1]])}
    assert arrays.relative_error(found, expected)[0] == pytest.approx(0.1)
    assert arrays.relative_error(expected, expected) == (0.0, "")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({}, "0 outputs; expected 1"),
        ({"y": np.zeros((2, 1))}, r"output 'y' has shape \(2, 1\); expected \(2,\)"),
        ({"y": np.array([np.nan, 1.0])}, "output 'y' or its reference is not finite"),
    ],
)
def test_what_does_not_compare_is_infinitely_wrong(found, sentence):
    error, reason = arrays.relative_error(found, {"x": np.ones(2)})
    assert error == np.inf
    assert re.fullmatch(sentence, reason)


# Command line and JSON


@pytest.fixture
def small_zoo(monkeypatch):
    def inputs(name, seed):
        if name == "open":
            raise ValueError("open has the symbolic dimension 'seq'")
        return doubling_inputs(seed)

    small = types.SimpleNamespace(
        names=lambda: ("doubling", "open"),
        load=lambda name, seed: doubling_model(),
        inputs=inputs,
    )
    monkeypatch.setattr(command_line, "zoo", small)
    fakes = {"ours": "fake_engines:right", "tvm": "fake_engines:wrong"}
    monkeypatch.setattr(session, "ENGINES", {**ENGINES, **fakes})


@pytest.mark.slow
def test_one_command_measures_and_its_json_makes_the_table(small_zoo, tmp_path, capsys):
    path = tmp_path / "results" / "trial.json"
    arguments = "--models doubling --peers ours,tvm,onnxruntime --rounds 2 --threads 1 --seed 5"
    assert command_line.main([*arguments.split(), "--budget", "0.01", "--json", str(path)]) == 0
    assert [p.name for p in path.parent.iterdir()] == ["trial.json"]
    record = json.loads(path.read_text())
    assert record["schema"] == table.SCHEMA
    assert record["settings"]["threads"] == 1
    assert record["settings"]["seed"] == 5
    assert record["command"][:5] == ["python", "-m", "benchmarks.harness", "--models", "doubling"]
    assert record["environment"].keys() >= {"cpu", "cpus", "date", "commit", "dirty", "python"}
    (model,) = record["models"]
    assert model["inputs"] == {"x/0": {"shape": [3, 5], "dtype": "float32"}}
    assert model["peers"]["onnxruntime"]["versions"].keys() == {"onnxruntime"}
    assert model["ratios"].keys() == {"onnxruntime"}

    assert table.main([str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert "| model | ours | tvm | onnxruntime |" in page
    assert "| doubling | tvm | wrong | relative error 5.0e-03; allowed 1e-04 |" in page
    assert "fake 1.0" in page


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--peers", "ours,caffe"], "unknown peers caffe; expected some of ours, tvm,"),
        (["--models", "vgg99"], "unknown model vgg99; expected one of doubling, open."),
        (
            ["--models", "open"],
            "open has the symbolic dimension 'seq'; expected a static model; choose",
        ),
        (["--batch", "0"], "batch 0; expected at least one image; choose another"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(
    small_zoo, tmp_path, capsys, change, sentence
):
    path = tmp_path / "x.json"
    arguments = ["--models", "doubling", "--json", str(path), *change]
    assert command_line.main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not path.exists()


# Tables


def record(date: str, ours: float, **model) -> dict:
    def timed(ms):
        spread = dict.fromkeys(("min", "p25", "median", "p75", "max"), ms)
        return {"status": "right", "reason": None, "error": 2e-7, "latency_ms": spread} | {
            "versions": {"fake": "1.0"},
            "facts": {"kernels": 12, "intermediate_bytes": 3_400_000},
            "round_ms": [ms, ms, None],
            "runs": 9,
            "reference": ENGINES["torch"],
        }

    ratio = dict.fromkeys(("min", "p25", "median", "p75", "max"), ours / 8.0)
    return {
        "schema": table.SCHEMA,
        "environment": {
            "cpu": "CPU",
            "date": date,
            "commit": None,
            "dirty": None,
            "python": "3.12",
        },
        "command": ["python", "-m", "benchmarks.harness"],
        "settings": {"threads": 2, "rounds": 3, "budget": 1.0, "seed": 0},
        "models": [
            {
                "name": "net",
                "peers": {
                    "onnxruntime": timed(8.0),
                    "ours": timed(ours),
                    "torch": timed(16.0),
                    "torch-compile": {"status": "failed", "reason": "a|b"},
                },
                "ratios": {"onnxruntime": ratio},
                **model,
            }
        ],
    }


def test_table_shows_figures_ratios_costs_and_failures():
    two = record("2026-01-01T00:00:00+00:00", 2.0)
    two["models"] += record("", 32.0, name="other")["models"]
    page = table.render({"a.json": two})
    assert "| model | ours | onnxruntime | torch | torch-compile |" in page
    assert "| net | 2.00 | 8.00 (0.25) | 16.0 | failed |" in page
    assert "| other | 32.0 | 8.00 (4.00) | 16.0 | failed |" in page
    assert "| geometric mean |  | (1.00) |  |  |" in page
    assert "| model | kernels, ours | intermediates, MB, ours |" in page
    assert "| net | 12 | 3.40 |" in page
    assert "| net | torch-compile | failed | a\\|b |" in page
    assert "commit unknown" in page


def test_newest_measurement_of_a_model_counts(tmp_path):
    for name, date, ours in (("b", "2026-01-01", 1.5), ("a", "2026-02-01", 2.5)):
        records.write(tmp_path / f"{name}.json.xz", record(date, ours))
    page = table.render(table.load(tmp_path))
    assert "| net | 2.50 |" in page
    assert "| net | 1.50 |" not in page


def test_file_of_another_schema_is_refused(tmp_path, capsys):
    records.write(tmp_path / "results" / "old.json.xz", {"schema": 0})
    assert table.main([str(tmp_path)]) == 2
    assert "old.json.xz has schema 0; expected 1; measure it again." in capsys.readouterr().err
    assert not (tmp_path / "README.md").exists()


def test_committed_table_is_what_the_committed_results_give():
    committed = (table.CPU / "README.md").read_text()
    assert committed == table.render(
        table.load(table.CPU / "results"), table.load_memory(table.CPU)
    )
