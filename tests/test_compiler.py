import json
import math
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tiny_models import dense, dense_data, dense_expected, dense_weights

import tvm_fusion
from tvm_fusion import DimRange, FusionConfig, UserError
from tvm_fusion._tvm import versions
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.device.probe import machine

pytestmark = pytest.mark.slow_beyond(2)

DIMS = {"batch": DimRange(1, 8)}


def test_the_manifest_tells_what_was_compiled(dense_folder):
    found = manifest.read(dense_folder)
    assert found["schema"] == 2
    assert found["source"] == "ModelProto"
    assert found["precision"] == "fp32"
    assert found["dims"] == {"batch": {"min": 1, "max": 8}}
    assert found["target"]["kind"] == "llvm"
    assert found["versions"]["apache-tvm"] == versions.TVM
    weight = found["weights"]["weight"]
    packed = weight.pop("packed")
    assert weight == {"shape": [64, 32], "dtype": "float32", "offset": 0, "bytes": 8192}
    assert packed["function"] == "pack0"
    assert math.prod(packed["shape"]) == 64 * 32  # in panels as wide as this machine's vectors
    main = found["functions"]["main"]
    assert main["inputs"] == [{"name": "data", "shape": ["batch", 64], "dtype": "float32"}]
    assert main["outputs"] == [{"name": "scores", "shape": ["batch", 32], "dtype": "float32"}]
    assert main["weights"] == ["weight"]
    assert main["kernels"] >= 1


def test_a_file_a_model_and_its_path_as_text_are_taken(dense_file, tmp_path):
    data = dense_data(2)
    expected = dense_expected(data, **dense_weights())
    for number, model in enumerate([dense_file, str(dense_file), dense()]):
        artifact = tvm_fusion.compile(model, "llvm", dims={"batch": 2})
        executable = tvm_fusion.load(artifact.export(tmp_path / str(number)))
        assert np.abs(executable(data=data)["scores"] - expected).max() < 1e-4


@pytest.mark.parametrize(
    "target",
    [
        "cpu:x86-64" if machine() == "x86_64" else "cpu:aarch64",
        {"kind": "llvm"},
    ],
    ids=str,
)
def test_code_for_any_cpu_of_the_family_runs_here(tmp_path, target):
    artifact = tvm_fusion.compile(dense(), target, dims=DIMS)
    data = dense_data(3)
    actual = tvm_fusion.load(artifact.export(tmp_path / "a"))(data=data)["scores"]
    assert np.abs(actual - dense_expected(data, **dense_weights())).max() < 1e-4


def test_config_and_options_together(dense_artifact):
    config = FusionConfig(dims={"batch": 4})
    fixed = tvm_fusion.compile(dense(), config=config)
    assert fixed.manifest["dims"] == {}
    widened = tvm_fusion.compile(dense(), config=config, dims=DIMS)
    assert widened.manifest == dense_artifact.manifest
    assert config.dims == {"batch": 4}


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (
            dense(),
            {"dimensions": {}},
            "there is no option 'dimensions'; expected one of dims.",
        ),
        (dense(), {"precision": "int8"}, "precision 'int8'; expected one of fp32, fp16, bf16"),
        (dense(), {"target": "gpu"}, "unknown target 'gpu'"),
        (dense(), {}, "unbound dimensions batch of input data"),
        (dense(), {"dims": {"length": 3}}, "--dim length names no dimension of the model"),
        (42, {}, r"a model of type int; expected an ONNX or \.pt2 file"),
        (dense(), {"dump": "/proc/none/dump"}, "cannot write to '/proc/none/dump'"),
    ],
)
def test_what_cannot_be_compiled_is_one_sentence(model, options, words):
    with pytest.raises(UserError, match=words) as caught:
        tvm_fusion.compile(model, **options)
    assert "\n" not in str(caught.value)


def test_a_mistake_found_inside_a_pass_arrives_as_itself():
    @tvm.transform.module_pass(opt_level=0, name="Refuse")
    def refuse(mod, _ctx):
        raise UserError("this", "that", "do so")

    with pytest.raises(UserError, match=r"^this; expected that; do so\.$"):
        tvm.ir.transform.Sequential([refuse])(tvm.IRModule())


FIRST_TVM = """
import sys
import tvm
from tvm import relax
import tvm_fusion
artifact = tvm_fusion.compile(sys.argv[1], dims={"batch": 2})
print(artifact.manifest["functions"]["main"]["kernels"])
"""


@pytest.mark.slow
def test_a_process_that_has_imported_tvm_already(dense_file):
    command = [sys.executable, "-c", FIRST_TVM, dense_file]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) >= 1
    assert done.stderr == ""


def test_static_inputs_are_the_models():
    with pytest.raises(UserError, match=r"there is no input 'cache'.*data"):
        tvm_fusion.compile(dense(2), dims=DIMS, static_inputs=("cache",))
