"""Loop nests of VGG-16: the zoo's VGG-19 without one convolution of each of three stages."""

import math

import numpy as np
import onnx
import pytest

from benchmarks import zoo
from benchmarks.fusion.counting import onnx_ours
from benchmarks.fusion.figures import CPU

pytestmark = pytest.mark.slow
DROPPED = ("conv3_4_w_0", "conv4_4_w_0", "conv5_4_w_0")
FLOOR = 17


def vgg16():
    """Give every weight the same few numbers: they are not looked at."""
    model = zoo.blank("light_vgg19")
    graph = model.graph
    pattern = np.random.default_rng(0).standard_normal(4099).astype("float32")
    for weight in (t for t in graph.initializer if zoo.is_blank(t)):
        weight.raw_data = np.resize(pattern, math.prod(weight.dims)).tobytes()
    nodes = list(graph.node)
    for conv in (n for n in nodes if n.op_type == "Conv" and n.input[1] in DROPPED):
        (relu,) = (n for n in nodes if list(n.input) == [conv.output[0]])
        (after,) = (n for n in nodes if list(n.input) == [relu.output[0]])
        after.input[0] = conv.input[0]
        graph.node.remove(conv)
        graph.node.remove(relu)
    onnx.checker.check_model(model)
    return model


def test_a_loop_nest_for_each_convolution_and_product():
    """13 convolutions, of which pooling joins five, 3 products and a softmax."""
    model = vgg16()
    assert sum(n.op_type in ("Conv", "Gemm") for n in model.graph.node) == 16
    counted = onnx_ours(model, CPU)
    assert counted["kernels"] <= FLOOR, counted
