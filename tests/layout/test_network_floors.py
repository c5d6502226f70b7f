"""Networks of convolutions: loop nests on a CPU, and no layout kernel on a CPU or a GPU."""

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm

from benchmarks import zoo
from benchmarks.fusion.counting import lowered, onnx_ours
from benchmarks.fusion.figures import CPU, GPU
from benchmarks.harness.arena import planned_bytes
from benchmarks.harness.table import CPU as CPU_PAGE
from benchmarks.harness.table import load_memory
from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse, probe
from tvm_fusion.frontend import import_model

pytestmark = pytest.mark.slow
# Most loop nests. VGG-16 has 13 convolutions, of which pooling joins five, 3 products, a softmax.
FLOORS = {
    "resnet50": 57,
    "mobilenet_v2": 54,
    "efficientnet_b0": 86,  # with AVX2; 81 with AVX-512
    "convnext_tiny": 95,
    "light_vgg19": 22,
    "vgg16": 17,
    "unet2d": 120,
}
DROPPED = ("conv3_4_w_0", "conv4_4_w_0", "conv5_4_w_0")


def load(name):
    """Fill every weight with the same few numbers: nothing reads them."""
    model = zoo.blank("light_vgg19" if name == "vgg16" else name)
    pattern = np.random.default_rng(0).standard_normal(4099).astype("float32")
    for weight in (t for t in model.graph.initializer if zoo.is_blank(t)):
        weight.raw_data = np.resize(pattern, math.prod(weight.dims)).tobytes()
    if name == "vgg16":
        drop_convolutions(model.graph)
        onnx.checker.check_model(model)
    return model


def drop_convolutions(graph):
    """Make VGG-16 of VGG-19: one convolution less in each of three stages."""
    nodes = list(graph.node)
    for conv in (n for n in nodes if n.op_type == "Conv" and n.input[1] in DROPPED):
        (relu,) = (n for n in nodes if list(n.input) == [conv.output[0]])
        (after,) = (n for n in nodes if list(n.input) == [relu.output[0]])
        after.input[0] = conv.input[0]
        graph.node.remove(conv)
        graph.node.remove(relu)
    assert sum(n.op_type in ("Conv", "Gemm") for n in graph.node) == 16


def layout_kernels(decisions):
    edges = [d for d in decisions if d.code == "layout"]
    assert edges  # of a plan: it was recorded
    return [d.sentence for d in decisions if d.code == "layout_kernel"]


@pytest.mark.parametrize("name", FLOORS)
def test_loop_nests_on_a_cpu(name, monkeypatch):
    two_cores = replace(probe.host_cpu(), cores=2)  # more divide loops more finely
    monkeypatch.setattr(probe, "host_cpu", lambda: two_cores)
    with recording() as decisions:
        counted = onnx_ours(load(name), CPU)
    assert counted["kernels"] <= FLOORS[name], counted
    assert layout_kernels(decisions) == []


def test_memory_of_intermediates_is_below_the_record_of_onnxruntime():
    record = load_memory(CPU_PAGE)
    one = record["models"]["resnet50"]
    assert planned_bytes(lowered(load("resnet50"), CPU)) <= one["onnxruntime"]


@pytest.mark.parametrize("name", FLOORS)
def test_no_layout_kernel_on_a_gpu(name):
    stages = [
        transform.NormalizeImport(),
        transform.Rewrite(),
        transform.Legalize(),
        transform.FuseOperators(),
        transform.PlanLayout(),
    ]
    mod = import_model(load(name)).mod
    with parse(GPU).tvm_target(), recording() as decisions:
        tvm.ir.transform.Sequential(stages)(mod)
    assert layout_kernels(decisions) == []
