"""The manifest says of every launch what it computes, by the user's names."""

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import tvm_fusion
from tvm_fusion.deploy.build.launch_names import launches_of
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.report.planned import plan_model


def layers(count, batch=4):
    """Make equal layers, each a product and what follows it, all called after their layer."""
    rng = np.random.default_rng()
    nodes, stored, last = [], [], "x"
    for i in range(count):
        weight = rng.standard_normal((32, 32)).astype("float32")
        stored.append(numpy_helper.from_array(weight, f"w{i}"))
        product = helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"/layer.{i}/MatMul")
        nodes.append(product)
        nodes.append(helper.make_node("Softmax", [f"m{i}"], [f"s{i}"], name=f"/layer.{i}/Softmax"))
        last = f"s{i}"
    infos = [helper.make_tensor_value_info(name, T.FLOAT, [batch, 32]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_equal_layers_share_kernels_and_keep_their_names(tmp_path):
    artifact = tvm_fusion.compile(layers(4), "cpu")
    artifact.export(tmp_path / "m")
    launches = manifest.read(tmp_path / "m")["functions"]["main"]["launches"]
    found = [name for launch in launches for name in launch["names"]]
    assert found == [f"/layer.{i}/{op}" for i in range(4) for op in ("MatMul", "Softmax")]
    kernels = [launch["kernel"] for launch in launches]
    assert len(kernels) == artifact.manifest["functions"]["main"]["calls"]
    assert len(set(kernels)) <= len(kernels) // 2
    assert not any("layer" in kernel for kernel in kernels)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90a"])
@pytest.mark.parametrize("batch", [4, "n"])
def test_names_survive_lowering(target, batch):
    config = tvm_fusion.FusionConfig(dims={} if batch == 4 else {"n": tvm_fusion.DimRange(1, 8)})
    planned = plan_model(layers(2, batch), target, config)
    lowered = planned.lowered(planned.scheduled(planned.plans))
    launches = launches_of(lowered, "main")
    named = [name for launch in launches for name in launch.names]
    assert named == [f"/layer.{i}/{op}" for i in range(2) for op in ("MatMul", "Softmax")]
    assert all(launch.names for launch in launches)
    assert [launch.reads for launch in launches] == [(), *((i,) for i in range(len(launches) - 1))]
