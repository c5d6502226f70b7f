"""Every model of the zoo and every light graph of the onnx package, against ONNX Runtime."""

import functools

import numpy as np
import onnxruntime
import pytest

import tvm_fusion
from benchmarks import zoo
from benchmarks.broken_claims import broken_claims
from benchmarks.fusion import table
from benchmarks.fusion.figures import CPU, MODELS
from tvm_fusion.device import parse
from tvm_fusion.report.reference import compare

pytestmark = pytest.mark.slow
RECORD = table.load()

WIDE_TOLERANCE = {name: 1e-4 for name in zoo.names() if not name.endswith("_dyn")}
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


@functools.lru_cache(maxsize=1)
def given(name):
    """Model, inputs and expected outputs: seconds of a model of a hundred million weights."""
    model, inputs = zoo.load(name), zoo.inputs(name)
    return model, inputs, reference(model, inputs)


def check_counts(name, counted):
    """Loop nests and bytes on a CPU are those of the record, and meet the floors."""
    recorded, floors = RECORD["models"][name], MODELS[name]
    if floors.launches is not None:
        assert counted["kernels"] <= floors.launches
    ratio = counted["intermediate_bytes"] / recorded["stock"][CPU]["intermediate_bytes"]
    assert ratio <= floors.bytes_floor(CPU)
    # Equal vectors are not enough: float16 arithmetic or matrix units change a plan as well.
    if list(parse(CPU).device.features) == RECORD["environment"].get("features"):
        ours = recorded["ours"][CPU]
        assert ours == {what: counted[what] for what in ours}


def errors(name, tmp_path, precision):
    model, inputs, expected = given(name)
    artifact = tvm_fusion.compile(model, precision=precision)
    if precision == "fp32" and name in MODELS:
        check_counts(name, artifact.manifest["functions"]["main"])
    fallbacks = [d for d in artifact.manifest["decisions"] if d["verdict"] == "fallback"]
    assert fallbacks == []
    assert not broken_claims(artifact.manifest["decisions"])
    outputs = tvm_fusion.load(artifact.export(tmp_path / name)).run(inputs)
    assert all(np.isfinite(value).all() for value in outputs.values())
    return compare(outputs, expected)


TOLERANCES = {"fp32": WIDE_TOLERANCE, "fp16": HALF_TOLERANCE, "bf16": BF16_TOLERANCE}
CASES = [(name, p) for name in zoo.names() for p, names in TOLERANCES.items() if name in names]


@pytest.mark.parametrize(("name", "precision"), CASES)  # those of a model one after the other
def test_right(name, precision, tmp_path):
    for output, error in errors(name, tmp_path, precision).items():
        assert error["max_rel_error"] <= TOLERANCES[precision][name], output
        if precision == "fp32":
            assert error["std"] > 1e-3, output
        else:
            assert error["max_rel_error"] > 0, output


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
