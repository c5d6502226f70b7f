"""The fastest precision within a bound: by errors that are measured, and times that are given."""

import json

import numpy as np
import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

import tvm_fusion
from tvm_fusion.cli import main
from tvm_fusion.config import STORED, FusionConfig
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.measure import precision


@pytest.fixture(scope="module")
def model():
    """A product."""
    weights = np.random.default_rng().standard_normal((32, 8)).astype("float32")
    return onnx_model(
        [("MatMul", ["x", "w"], ["y"])],
        [("x", T.FLOAT, [4, 32])],
        [("y", T.FLOAT, [4, 8])],
        {"w": weights},
    )


@pytest.fixture(scope="module")
def artifacts(model):
    return {name: tvm_fusion.compile(model, precision=name) for name in STORED}


def chosen(artifacts, monkeypatch, us, bound=None, **samples):
    """What is chosen where runs take these times."""
    for one in artifacts.values():
        one.manifest.pop("precisions", None)
    monkeypatch.setattr(precision, "in_turns", lambda calls, effort: us[: len(calls)])
    found = precision.fastest_precision(artifacts.get, parse("cpu"), bound, samples)
    return found.manifest["precision"], {
        one["precision"]: one for one in found.manifest["precisions"]
    }


def test_the_fastest(artifacts, monkeypatch):
    name, measured = chosen(artifacts, monkeypatch, [3.0, 2.0, 1.0])
    assert name == "bf16"
    assert measured["fp32"] == {
        "precision": "fp32", "error": 0.0, "bound": 1e-4, "milliseconds": 3e-3
    }  # fmt: skip
    assert 0 < measured["fp16"]["error"] < measured["bf16"]["error"] < measured["bf16"]["bound"]
    assert chosen(artifacts, monkeypatch, [3.0, 1.0, 2.0])[0] == "fp16"
    assert chosen(artifacts, monkeypatch, [1.0, 2.0, 3.0])[0] == "fp32"


def test_errors_beyond_the_bound(artifacts, monkeypatch):
    _, measured = chosen(artifacts, monkeypatch, [3.0, 2.0, 1.0])
    between = (measured["fp16"]["error"] + measured["bf16"]["error"]) / 2
    name, measured = chosen(artifacts, monkeypatch, [3.0, 2.0, 1.0], between)
    assert name == "fp16"
    assert measured["bf16"]["bound"] == between
    assert "milliseconds" not in measured["bf16"]
    assert chosen(artifacts, monkeypatch, [3.0, 2.0, 1.0], 0.0)[0] == "fp32"


def test_inputs_that_are_given(artifacts, monkeypatch):
    """These are beyond 65504, the largest float16."""
    x = np.full((4, 32), 1e5, "float32")
    name, measured = chosen(artifacts, monkeypatch, [3.0, 2.0, 1.0], x=x)
    assert name == "bf16"
    assert measured["fp16"]["error"] is None
    with pytest.raises(UserError, match="'factor'"):
        chosen(artifacts, monkeypatch, [3.0, 2.0, 1.0], factor=x)


def test_targets_that_do_not_run_here(model):
    words = "whose code does not run on this machine; expected a target that does"
    for target in ("cpu:neoverse-n1", "rocm:gfx942"):
        with pytest.raises(UserError, match=words):
            tvm_fusion.compile(model, target, precision="auto")


def test_the_command_says_what_it_chose(dense_file, tmp_path, capsys):
    options = ["--precision", "auto", "--error-bound", "0.2", "--dim", "batch=4"]
    np.savez(tmp_path / "x.npz", data=np.ones((4, 64), "float32"))
    options += ["--inputs", str(tmp_path / "x.npz")]
    command = ["compile", str(dense_file), "-o", str(tmp_path / "a"), *options]
    assert main([*command, "--json", "--cache", str(tmp_path / "cache")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["precision"] for one in result["precisions"]] == list(STORED)
    fastest = min(result["precisions"], key=lambda one: one["milliseconds"])
    assert result["precision"] == fastest["precision"]
    assert manifest.read(tmp_path / "a")["precisions"] == result["precisions"]
    assert main([*command, "--cache", str(tmp_path / "cache")]) == 0
    text = capsys.readouterr().out
    assert "is the fastest within its bound: fp32" in text
    assert "(bound 0.2)" in text
    assert main(["inspect", str(tmp_path / "a")]) == 0
    assert "is the fastest within its bound: fp32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"error_bound": 0.1}, "error_bound with precision 'fp32'; expected precision 'auto'"),
        ({"samples": {"x": [1.0]}}, "samples with precision 'fp32'"),
        ({"precision": "auto", "error_bound": -1.0}, "error_bound -1.0; expected 0 or more"),
    ],
)
def test_mistakes(options, words):
    with pytest.raises(UserError, match=words):
        FusionConfig(**options)


def test_only_a_compilation_chooses(model):
    with pytest.raises(UserError, match=r"precision 'auto'; expected one of fp32, .* only a comp"):
        import_model(model, FusionConfig(precision="auto"))
