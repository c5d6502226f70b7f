"""Real exported graphs through the whole frontend: what must be gone, and what must be found."""

from collections import Counter

import pytest
from tvm import relax

from benchmarks import zoo
from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.signature import DimRange

EXPENSIVE = {"nn.batch_norm", "stack", "call_tir", "nn.dropout", "nn.avg_pool2d", "broadcast_to"}


@pytest.mark.slow
@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mobilenet_v2", {"nn.conv2d": 52, "clip": 35, "mean": 1}),
        ("light_resnet50", {"nn.conv2d": 53, "nn.relu": 49, "add": 53 + 16 + 1}),
        ("efficientnet_b0", {"nn.conv2d": 81, "mean": 16 + 1}),
    ],
)
def test_convolutional_networks(name, counts, operators):
    imported = import_model(zoo.load(name))
    found = Counter(operators(imported.mod["main"]))
    assert not EXPENSIVE & found.keys()
    assert {key: found[key] for key in counts} == counts
    # Every weight is either the model's or says what it was made from.
    assert len(imported.weight_names) >= 50


@pytest.mark.slow
def test_symbolic_transformer():
    config = FusionConfig(dims={"seq": DimRange(1, 512)}, precision="bf16")
    imported = import_model(zoo.load("bert_base_dyn"), config)
    assert imported.signatures["main"].outputs[0].shape == (1, "seq", 768)
    unknown = []

    def visit(expr):
        if isinstance(expr, relax.Call) and isinstance(expr.ty, relax.TensorType):
            variables = relax.analysis.tir_vars_in_type(expr.ty)
            if expr.ty.shape is None or any(var.name != "seq" for var in variables):
                unknown.append(expr)

    relax.analysis.post_order_visit(imported.mod["main"], visit)
    assert not unknown  # every shape in the graph is known in terms of the one dimension
