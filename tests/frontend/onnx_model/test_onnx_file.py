import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.external_data_helper import convert_model_to_external_data

from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.onnx_model.file import is_cut_short, load


@pytest.fixture
def model(onnx_model):
    weights = {"w": np.arange(4096, dtype="float32").reshape(64, 64)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return onnx_model(nodes, {"x": ("float32", [2, 64])}, {"y": ("float32", [2, 64])}, weights)


def one_sentence(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_missing_file(tmp_path):
    with pytest.raises(UserError) as error:
        import_model(tmp_path / "nowhere.onnx")
    assert "nowhere.onnx does not exist" in one_sentence(error)


def test_folder(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        import_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello, this is no model", b"\x7fELF\x02\x01\x01" * 50])
def test_not_an_onnx_file(tmp_path, content):
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(UserError) as error:
        import_model(tmp_path / "a.onnx")
    assert "a.onnx is not an ONNX file" in one_sentence(error)


@pytest.mark.parametrize("part", [0.02, 0.1, 0.5, 0.99])
def test_truncated_file(tmp_path, model, part):
    data = model.SerializeToString()
    (tmp_path / "a.onnx").write_bytes(data[: int(len(data) * part)])
    with pytest.raises(UserError) as error:
        import_model(tmp_path / "a.onnx")
    assert "a.onnx is cut short" in one_sentence(error)


def test_is_cut_short_tells_truncation_from_other_content(model):
    data = model.SerializeToString()
    assert not is_cut_short(data)
    assert is_cut_short(data[:-1])
    assert not is_cut_short(b"PK\x03\x04 a zip archive")


@pytest.fixture
def stored_outside(tmp_path, model):
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


def test_external_data_is_loaded(stored_outside):
    tensor = load(stored_outside).graph.initializer[0]
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(tensor), np.arange(4096, dtype="float32").reshape(64, 64)
    )
    assert import_model(str(stored_outside)).weight_names.popitem()[1] == "w"


def test_external_data_missing(stored_outside, monkeypatch):
    (stored_outside.parent / "weights.bin").unlink()
    monkeypatch.chdir(stored_outside.parent)
    with pytest.raises(UserError) as error:
        import_model(stored_outside.name)
    said = one_sentence(error)
    assert "keeps its weights in weights.bin, which is not next to it" in said
    assert f"that file in {stored_outside.parent.resolve()};" in said


def test_a_weight_with_too_few_numbers_is_named(model):
    del model.graph.initializer[0].float_data[:]
    model.graph.initializer[0].raw_data = bytes(8)
    with pytest.raises(UserError) as error:
        import_model(model)
    assert "w of shape [64, 64] has another number of elements" in one_sentence(error)


def test_external_data_cut_short(stored_outside):
    weights = stored_outside.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"weights\.bin is cut short: 1000 bytes; expected"):
        import_model(stored_outside)


def test_proto_whose_weights_are_elsewhere(stored_outside):
    with pytest.raises(UserError) as error:
        import_model(onnx.load(stored_outside, load_external_data=False))
    assert "keeps 1 weights outside of itself, in weights.bin" in one_sentence(error)


def test_unknown_type_of_model():
    with pytest.raises(UserError, match=r"a model of type dict; expected an ONNX or \.pt2 file"):
        import_model({})
