"""Every model of the zoo and every light graph of the onnx package, against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest

import tvm_fusion
from benchmarks import zoo
from benchmarks.broken_claims import broken_claims
from tvm_fusion.report.reference import compare

pytestmark = pytest.mark.slow

# float16 stores 10 mantissa bits. T5 does not scale its scores, so that its softmax is near one-hot
# and passes every rounding on; ONNX Runtime in float32 differs from itself by 4e-5 there.
HALF_TOLERANCE = {name: 1e-2 for name in zoo.names() if "light" not in name and "dyn" not in name}
HALF_TOLERANCE["t5_small_enc"] = 8e-2
# bfloat16 stores 7 mantissa bits.
BF16_TOLERANCE = {"light_squeezenet": 3e-2, "mobilenet_v2": 2e-2}


def reference(model, inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def errors(name, tmp_path, inputs, **options):
    model = zoo.load(name)
    expected = reference(model, inputs)
    artifact = tvm_fusion.compile(model, **options)
    fallbacks = [d for d in artifact.manifest["decisions"] if d["verdict"] == "fallback"]
    assert fallbacks == []
    assert not broken_claims(artifact.manifest["decisions"])
    outputs = tvm_fusion.load(artifact.export(tmp_path / name)).run(inputs)
    assert all(np.isfinite(value).all() for value in outputs.values())
    return compare(outputs, expected)


@pytest.mark.parametrize("name", [n for n in zoo.names() if not n.endswith("_dyn")])
def test_right_in_fp32(name, tmp_path):
    for output, error in errors(name, tmp_path, zoo.inputs(name)).items():
        assert error["std"] > 1e-3, output
        assert error["max_rel_error"] <= 1e-4, output


@pytest.mark.parametrize("name", HALF_TOLERANCE)
def test_right_in_fp16(name, tmp_path):
    inputs = zoo.inputs(name)
    for output, error in errors(name, tmp_path, inputs, precision="fp16").items():
        assert 0 < error["max_rel_error"] <= HALF_TOLERANCE[name], output


@pytest.mark.parametrize("name", BF16_TOLERANCE)
def test_right_in_bf16(name, tmp_path):
    inputs = zoo.inputs(name)
    for output, error in errors(name, tmp_path, inputs, precision="bf16").items():
        assert 0 < error["max_rel_error"] <= BF16_TOLERANCE[name], output


def test_one_artifact_for_many_sequence_lengths(tmp_path):
    name, dims = "bert_base_dyn", {"seq": tvm_fusion.DimRange(1, 300)}
    model = zoo.load(name)
    artifact = tvm_fusion.compile(model, dims=dims)
    executable = tvm_fusion.load(artifact.export(tmp_path / name))
    for length in (17, 128, 300):
        inputs = zoo.inputs(name, dims={"seq": length})
        for error in compare(executable.run(inputs), reference(model, inputs)).values():
            assert error["max_rel_error"] <= 1e-4
    with pytest.raises(tvm_fusion.UserError, match="seq = 301; expected 1 to 300"):
        executable.run(zoo.inputs(name, dims={"seq": 301}))
