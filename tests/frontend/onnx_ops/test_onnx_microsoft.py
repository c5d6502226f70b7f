"""Operators that ONNX Runtime's graph optimizations make, against ONNX Runtime."""

import pytest
from onnx import helper

from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

F32 = "float32"


@pytest.mark.parametrize(
    ("name", "bias"), [("Gelu", 0), ("BiasGelu", 1), ("FastGelu", 0), ("FastGelu", 1)]
)
def test_gelu(agrees, rng, name, bias):
    inputs = {"x": rng.standard_normal((3, 7), F32) * 3}
    inputs |= {"b": rng.standard_normal(7, F32)} if bias else {}
    agrees(f"com.microsoft::{name}", inputs, {"y": F32})


@pytest.mark.parametrize("attrs", [{}, {"alpha": 0.7}])
def test_quick_gelu(agrees, rng, attrs):
    agrees("com.microsoft::QuickGelu", {"x": rng.standard_normal((3, 7), F32)}, {"y": F32}, **attrs)


@pytest.mark.parametrize(
    ("beta", "bias", "skip"),
    [
        (False, False, (2, 5, 9)),
        (False, True, (1, 5, 9)),
        (True, False, (5, 9)),
        (True, True, (2, 5, 9)),
    ],
)
def test_skip_layer_normalization(agrees, rng, beta, bias, skip):
    inputs = {"x": rng.standard_normal((2, 5, 9), F32), "s": rng.standard_normal(skip, F32)}
    inputs["g"] = rng.standard_normal(9, F32)
    inputs["b" if beta else "_beta"] = rng.standard_normal(9, F32)
    inputs["c" if bias else "_bias"] = rng.standard_normal(9, F32)
    outputs = {"y": F32, "_mean": F32, "_deviation": F32, "sum": F32}
    name = "com.microsoft::SkipLayerNormalization"
    agrees(name, inputs, outputs, atol=1e-5, epsilon=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_skip_rms_normalization(agrees, rng, bias):
    inputs = {name: rng.standard_normal((2, 5, 9), F32) for name in "xs"}
    inputs |= {"g": rng.standard_normal(9, F32)}
    inputs |= {"b": rng.standard_normal(9, F32)} if bias else {}
    outputs = {"y": F32, "_mean": F32, "_deviation": F32, "sum": F32}
    name = "com.microsoft::SkipSimplifiedLayerNormalization"
    agrees(name, inputs, outputs, atol=1e-5, epsilon=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(agrees, rng, axis):
    inputs = {"x": rng.standard_normal((3, 5, 7), F32)}
    inputs["g"] = rng.standard_normal(inputs["x"].shape[axis:], F32)
    attrs = {"axis": axis, "epsilon": 1e-6, "stash_type": 1}
    agrees("SimplifiedLayerNormalization", inputs, {"y": F32}, atol=1e-5, **attrs)


def test_statistics_of_skip_layer_normalization_are_refused(onnx_model):
    node = helper.make_node(
        "SkipLayerNormalization", ["x", "x", "g"], ["y", "mean"], domain="com.microsoft"
    )
    inputs = {"x": (F32, [2, 3]), "g": (F32, [3])}
    outputs = {"y": (F32, [2, 3]), "mean": (F32, [2, 1])}
    with pytest.raises(UserError, match=r"outputs that its converter does not compute \(mean\)"):
        import_model(onnx_model([node], inputs, outputs, domains=["com.microsoft"]))


@pytest.mark.parametrize(
    ("a", "b", "attrs"),
    [
        ((2, 3, 4), (2, 4, 5), {}),
        ((2, 4, 3), (2, 5, 4), {"transA": 1, "transB": 1, "alpha": 0.5}),
        ((3, 2, 4), (2, 4, 5), {"transBatchA": 1, "transBatchB": 0}),
        (
            (4, 2, 7, 3),
            (5, 2, 7, 4),
            {"transBatchA": 1, "transBatchB": 1, "transA": 1, "transB": 1},
        ),
    ],
)
def test_fused_matmul(agrees, rng, a, b, attrs):
    inputs = {"a": rng.standard_normal(a, F32), "b": rng.standard_normal(b, F32)}
    agrees("com.microsoft::FusedMatMul", inputs, {"y": F32}, atol=1e-5, **attrs)


@pytest.mark.parametrize(
    ("activation", "params", "added"),
    [("Relu", [], True), ("LeakyRelu", [0.3], False), ("HardSigmoid", [0.3, 0.4], True)],
)
def test_fused_convolution(agrees, rng, activation, params, added):
    inputs = {"x": rng.standard_normal((2, 3, 7, 6), F32)}
    inputs["w"] = rng.standard_normal((4, 3, 3, 2), F32)
    inputs["b"] = rng.standard_normal(4, F32)
    inputs |= {"z": rng.standard_normal((2, 4, 4, 5), F32)} if added else {}
    attrs = {"activation": activation, "pads": [1, 0, 1, 0], "strides": [2, 1]}
    attrs |= {"activation_params": params} if params else {}
    agrees("com.microsoft::FusedConv", inputs, {"y": F32}, constants=["w"], atol=1e-5, **attrs)


def test_fused_gemm(agrees, rng):
    inputs = {"a": rng.standard_normal((5, 3), F32), "b": rng.standard_normal((5, 4), F32)}
    inputs["c"] = rng.standard_normal(4, F32)
    attrs = {"activation": "LeakyRelu", "activation_alpha": 0.3, "alpha": 0.5, "transA": 1}
    agrees("com.microsoft::FusedGemm", inputs, {"y": F32}, atol=1e-5, **attrs)


def test_unknown_activations_are_refused_by_preflight(onnx_model):
    node = helper.make_node(
        "FusedConv", ["x", "w"], ["y"], domain="com.microsoft", activation="Mystery"
    )
    inputs = {"x": (F32, [1, 1, 3, 3]), "w": (F32, [1, 1, 1, 1])}
    model = onnx_model([node], inputs, {"y": (F32, None)}, domains=["com.microsoft"])
    sentence = r"com.microsoft::FusedConv with activation=Mystery \(1x\); for .*, use Relu or"
    with pytest.raises(UserError, match=sentence):
        import_model(model)
