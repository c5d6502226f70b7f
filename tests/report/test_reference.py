import ml_dtypes
import numpy as np
import onnx
import pytest
from tiny_models import dense_data, dense_expected, dense_weights

from tvm_fusion.errors import UserError
from tvm_fusion.report import reference
from tvm_fusion.report.reference import compare, onnx_reference

ONE = np.array([1.0, -4.0, 2.0])


def errors(actual, expected):
    entry = compare({"y": np.asarray(actual)}, {"y": np.asarray(expected)})["y"]
    return entry["max_abs_error"], entry["max_rel_error"]


@pytest.mark.parametrize(
    ("actual", "expected", "absolute", "relative"),
    [
        (ONE, ONE, 0, 0),
        (ONE + 0.5, ONE, 0.5, 0.125),
        ([0.0], [0.0], 0, 0),
        ([1e-9], [0.0], 1e-9, np.inf),
        ([np.nan, 1], [np.nan, 1], 0, 0),
        ([np.inf, -np.inf], [np.inf, -np.inf], 0, 0),
        ([np.inf], [-np.inf], np.inf, np.inf),
        ([np.nan, 1], [0, 1], np.inf, np.inf),
        ([0, 1], [np.nan, 1], np.inf, np.inf),
        ([np.inf, 1], [1e30, 1], np.inf, np.inf),
        ([True, False], [True, True], 1, 1),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0, 0),
    ],
)
def test_errors_against_the_largest_value(actual, expected, absolute, relative):
    assert errors(actual, expected) == (pytest.approx(absolute), pytest.approx(relative))


def test_half_precision_is_compared_in_float64():
    actual = np.array([60000], "float16")
    assert errors(actual, np.array([60128], "float32"))[0] == pytest.approx(60128 - 60000, abs=32)
    assert errors(np.ones(3, ml_dtypes.bfloat16), np.ones(3)) == (0, 0)


def test_outputs_must_have_the_references_names_and_shapes():
    with pytest.raises(
        UserError, match=r"output 'y' has shape \(3,\) and the reference has \(2,\)"
    ):
        errors(ONE, ONE[:2])
    with pytest.raises(UserError, match=r"output 'z' has shape .* the reference has nothing"):
        compare({"z": ONE}, {"y": ONE})


@pytest.mark.parametrize("name", ["ONNX Runtime", "onnx.reference"])
def test_both_implementations_agree_with_numpy(dense_file, monkeypatch, name):
    if name == "onnx.reference":
        monkeypatch.setattr(reference.importlib.util, "find_spec", lambda _: None)
    data = dense_data(3)
    used, outputs = onnx_reference(dense_file, {"data": data})
    assert used == name
    expected = dense_expected(data, **dense_weights())
    assert errors(outputs["scores"], expected)[1] < 1e-6


def test_inputs_of_half_precision_are_converted(dense_file):
    half = dense_data(3).astype(ml_dtypes.bfloat16)
    _, outputs = onnx_reference(dense_file, {"data": half})
    _, expected = onnx_reference(dense_file, {"data": half.astype("float32")})
    np.testing.assert_array_equal(outputs["scores"], expected["scores"])


def test_what_cannot_be_run_is_one_sentence(dense_file, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    model = onnx.load(dense_file)
    model.graph.input[0].name = "image"
    model.graph.node[0].input[0] = "image"
    onnx.save(model, tmp_path / "other.onnx")
    for path, words in [
        (tmp_path / "none.onnx", "there is no file"),
        (tmp_path / "bad.onnx", "the reference cannot run .* expected the model that the artifact"),
        (tmp_path / "other.onnx", r"the reference cannot run .*image"),
    ]:
        with pytest.raises(UserError, match=words) as caught:
            onnx_reference(path, {"data": dense_data(1)})
        assert "\n" not in str(caught.value)
