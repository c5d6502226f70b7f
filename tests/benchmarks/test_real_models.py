"""The benchmark of trained files, on a tiny one that stands in."""

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.real_models import __main__ as command
from benchmarks.real_models import clients, files, measure
from tvm_fusion.config import parse_dims

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[h, w] x) => (float[h, w] y) { a = Relu(x) y = Exp(a) }"""
TINY = files.File("tiny", "tiny", "1.0", "tiny/model.onnx", {"h": "4..64:4", "w": "1..9"})


@pytest.mark.slow
def test_a_file_in_a_folder_is_measured(tmp_path, monkeypatch):
    place = tmp_path / "tiny-1.0" / TINY.path
    place.parent.mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(MODEL), place)
    assert files.fetch(TINY, tmp_path) == place
    row = measure.measure(TINY, place, (1,), gpu=False)
    assert row["error"] < 1e-6
    assert [size["h"] % 4 for size in row["sizes"]] == [0, 0, 0]
    assert row["threads_1"].keys() == {"ours_ms", "onnxruntime_ms"}
    record = tmp_path / "record.json"
    command.keep(record, row)
    command.keep(record, row)
    page = command.render([row])
    assert "1 of 1 files are right" in page
    assert "| tiny | tiny 1.0 | h=4..64:4, w=1..9 |" in page


def test_what_is_refused_is_a_loss(tmp_path):
    text = MODEL.replace("Relu", "NoSuch")
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    row = measure.measure(TINY, path, (), gpu=False)
    page = command.render([row])
    assert "0 of 1 files are right" in page
    assert "* tiny: " in page


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
    assert not measure.is_right({"error": measure.difference(nothing, nothing)})


def test_bytes_may_be_as_far_off_as_onnxruntime_is_from_itself():
    assert measure.is_right({"error": 2e-3, "own_error": 8e-4})
    assert not measure.is_right({"error": 2e-3, "own_error": 2e-4})
    assert not measure.is_right({"failed": "a sentence"})
