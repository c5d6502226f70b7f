"""The benchmark of trained files, on a tiny one that stands in."""

import json
import os

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks import cores
from benchmarks.real_models import __main__ as command
from benchmarks.real_models import clients, files, measure, times
from benchmarks.real_models import page as pages
from tvm_fusion.config import parse_dims

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[h, w] x) => (float[h, w] y) { a = Relu(x) y = Exp(a) }"""
TINY = files.File("tiny", "tiny", "1.0", "tiny/model.onnx", {"h": "4..64:4", "w": "1..9"})


def page(*rows):
    where = {"cpu": "a CPU", "cpus": 2, "date": "2000-01-01T00:00"}
    return pages.page({"environment": where, "files": rows})


@pytest.mark.slow
def test_a_file_in_a_folder_is_measured(tmp_path):
    place = tmp_path / "tiny-1.0" / TINY.path
    place.parent.mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(MODEL), place)
    assert files.fetch(TINY, tmp_path) == place
    cell = measure.measure(TINY, place, tmp_path / "kept" / "cpu" / "tiny", "cpu")
    assert cell["outcome"] == "right"
    assert cell["error"] < 1e-6
    assert [size["h"] % 4 for size in cell["sizes"]] == [0, 0, 0]
    ((file, found),) = times.times([TINY], {"tiny": place}, tmp_path / "kept", 1)
    assert file is TINY
    assert found.keys() == {"ours_ms", "onnxruntime_ms"}
    record = tmp_path / "record.json"
    command.keep(record, TINY, {"cpu": {"outcome": "failed"}, "threads_1": found})
    command.keep(record, TINY, {"cpu": cell})
    (row,) = json.loads(record.read_text())["files"]
    assert row["cpu"]["outcome"] == "right"
    assert row["threads_1"].keys() == found.keys()
    text = page(row)
    assert "1 of 1 files are right" in text
    assert "| tiny | tiny 1.0 | h=4..64:4, w=1..9 |" in text


def test_what_is_refused_is_a_loss(tmp_path):
    text = MODEL.replace("Relu", "NoSuch")
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    cell = measure.measure(TINY, path, tmp_path / "kept", "cpu")
    assert cell["outcome"] == "refused"
    text = page({**measure.about(TINY), "cpu": cell})
    assert "0 of 1 files are right" in text
    assert "* tiny, cpu: " in text


def test_what_ran_on_a_gpu_has_rows():
    near = {"outcome": "right", "kernels": 3, "error": 2e-2, "own_error": 1e-2, "compile_s": 4.0}
    compiled = {"outcome": "compiles", "kernels": 3, "compile_s": 4.0}
    failed = {"outcome": "failed", "reason": "a sentence"}
    text = page(*({**measure.about(TINY), "sm_90a": x} for x in (near, compiled, failed)))
    assert "2 of 3 compile; 1 ran on a GPU, 1 of them right" in text
    assert "| tiny | right | 3 | 2e-02 (1e-02) |  | 4 |" in text
    assert "* tiny, sm_90a: a sentence" in text


def test_weights_are_rounded_to_half(tmp_path):
    weights = np.array([1 + 2.0**-14, 1e9, -np.inf], "float32")
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[3] x) => (float[3] y) { w = Constant() y = Add(x, w) }""")
    model.graph.node[0].attribute.append(
        onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(weights))
    )
    onnx.save(model, tmp_path / "m.onnx")
    (found,) = onnxruntime.InferenceSession(measure.halved(tmp_path / "m.onnx")).run(
        None, {"x": np.zeros(3, "float32")}
    )
    np.testing.assert_array_equal(found, np.array([1, 1e9, -np.inf], "float32"))


def test_processes_side_by_side_share_no_core():
    for threads in (1, 2):
        sets = cores.core_sets(threads)
        assert sum(map(len, sets)) == len(set().union(*sets))
        assert set().union(*sets) <= os.sched_getaffinity(0)
    found = cores.side_by_side(lambda item, cpus: (item, len(cpus)), range(5), [{0}, {1}])
    assert list(found) == [(i, (i, 1)) for i in range(5)]
    assert cores.python(["-c", "import os; print(os.environ['A'])"], {"A": "3"}, {0}) == "3\n"
    with pytest.raises(RuntimeError, match="ValueError: no"):
        cores.python(["-c", "raise ValueError('no')"], {}, {0})


@pytest.mark.parametrize("file", files.FILES, ids=lambda file: file.name)
def test_ranges_are_those_of_the_option(file):
    parse_dims(f"{name}={text}" for name, text in file.dims.items())


def test_there_are_enough_files():
    assert len(files.FILES) >= 25
    assert len({file.name for file in files.FILES}) == len(files.FILES)


def test_a_session_in_place_of_onnxruntime_runs_here(tmp_path, monkeypatch):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    session = clients.Session(onnxruntime.InferenceSession, tmp_path / "model.onnx")
    monkeypatch.setattr(session._described, "run", None)
    (y,) = session.run(["y"], {"x": np.array([[-1, 2]], "float32")})
    np.testing.assert_allclose(y, np.exp([[0, 2]]), rtol=1e-6)
    assert session.get_inputs()[0].name == "x"


@pytest.mark.parametrize(
    ("found", "expected"),
    [([1.0, ["a", 201.0]], 1 / 200), ([1.0, ["b", 200.0]], np.inf), ([1.0], np.inf)],
)
def test_results_of_clients_are_compared(found, expected):
    assert clients.difference(found, [1.0, ["a", 200.0]]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [([np.nan, 1.0], 0.0), ([np.nan, 2.0], 1.0), ([0.0, 1.0], np.inf), ([np.nan] * 2, np.inf)],
)
def test_nan_is_equal_to_nan_only(found, wanted):
    assert measure.difference(np.array(found), np.array([np.nan, 1.0])) == wanted


def test_nothing_but_nan_is_not_right():
    nothing = np.full(3, np.nan)
    error = measure.difference(nothing, nothing)
    assert not measure.is_near({"error": error, "own_error": 0.0}, "fp32")


def test_bytes_may_be_as_far_off_as_onnxruntime_is_from_itself():
    assert measure.is_near({"error": 2e-3, "own_error": 8e-4}, "fp32")
    assert not measure.is_near({"error": 2e-3, "own_error": 2e-4}, "fp32")
    assert measure.is_near({"error": 9e-3, "own_error": 0.0}, "fp16")
    assert not measure.is_right({"cpu": {"outcome": "failed"}})
