"""Converters that come from outside: for ONNX's operators, and for other domains."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import relax

import tvm_fusion
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model, onnx_ops
from tvm_fusion.frontend.onnx_ops import CONVERTERS, other_than, register
from tvm_fusion.frontend.onnx_ops.reviewed import is_reviewed
from tvm_fusion.frontend.preflight import _ADVICE, inspect

X = {"x": ("float32", [2, 4])}
Y = {"y": ("float32", [2, 4])}


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Forget what a test registers."""
    kept = dict(CONVERTERS)
    yield
    CONVERTERS.clear()
    CONVERTERS.update(kept)


@pytest.fixture
def acme(onnx_model):
    """Build a model of one node of the domain ``com.acme``."""

    def build(op="Foo", version=1, **attrs):
        node = helper.make_node(op, ["x"], ["y"], domain="com.acme", **attrs)
        model = onnx_model([node], X, Y)
        model.opset_import.append(helper.make_opsetid("com.acme", version))
        return model

    return build


def test_the_example_of_the_page(rng, tmp_path):
    page = (Path(onnx_ops.__file__).parent / "README.md").read_text()
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, names)
    x, b = rng.standard_normal((3, 5), "float32"), rng.standard_normal(5, "float32")
    run = tvm_fusion.load(names["artifact"].export(tmp_path / "artifact"))
    expected = np.sign(x) * (x * x + 0.5) + b
    np.testing.assert_allclose(run(x=x, b=b)["y"], expected, rtol=1e-5, atol=1e-6)
    model = onnx.ModelProto()
    model.CopyFrom(names["model"])
    next(a for a in model.graph.node[0].attribute if a.name == "mode").s = b"cube"
    sentence = r"Soften with mode=cube \(1x\); for com.acme::Soften, use sqrt or square"
    with pytest.raises(UserError, match=sentence):
        import_model(model)


def test_an_operator_without_a_converter(acme):
    with pytest.raises(UserError, match=r"com.acme::Foo \(1x\).*register a converter"):
        import_model(acme())


@pytest.mark.parametrize("name", ["Multinomial", "ai.onnx::Multinomial"])
def test_a_standard_operator_that_tvm_lacks(onnx_model, name):
    register(name)(lambda node: node.inputs[0])
    model = onnx_model([helper.make_node("Multinomial", ["x"], ["y"])], X, Y)
    assert not inspect(model, []).operators


def test_a_converter_before_the_importers_own(onnx_model, operators):
    register("Relu")(lambda node: relax.op.exp(node.inputs[0]))
    model = onnx_model([helper.make_node("Relu", ["x"], ["y"])], X, Y)
    assert operators(import_model(model).mod["main"]) == ["exp"]


def test_the_domain_counts(acme):
    register("Foo")(lambda node: node.inputs[0])
    with pytest.raises(UserError, match=r"unsupported operators com.acme::Foo"):
        import_model(acme())


def test_a_second_converter_has_to_be_meant(acme, operators):
    register("com.acme::Foo")(lambda node: relax.op.exp(node.inputs[0]))
    with pytest.raises(UserError, match=r"a second converter of com.acme::Foo; pass replace=True"):
        register("com.acme::Foo")(lambda node: relax.op.tanh(node.inputs[0]))
    register("com.acme::Foo", replace=True)(lambda node: relax.op.tanh(node.inputs[0]))
    assert operators(import_model(acme()).mod["main"]) == ["tanh"]


def test_versions_before_the_first_are_refused(acme):
    register("com.acme::Foo", since=3)(lambda node: relax.op.exp(node.inputs[0]))
    assert dict(inspect(acme(version=2), []).operators) == {"com.acme::Foo": 1}
    assert not inspect(acme(version=3), []).operators


def test_attributes_that_no_one_reads_are_refused(acme):
    register("com.acme::Foo")(lambda node: relax.op.exp(node.inputs[0]))
    with pytest.raises(UserError, match=r"Foo uses attribute alpha=0.5, which its converter"):
        import_model(acme(alpha=0.5))


def test_what_is_left_to_tvm_must_be_of_its_domain(acme):
    register("com.acme::Relu")(lambda node: None)
    with pytest.raises(UserError, match=r"com.acme::Relu is left to TVM, which has no converter"):
        import_model(acme("Relu"))


def test_refusals_come_together(onnx_model):
    register("com.acme::Foo", refuses=other_than(k=(1, 2)))(lambda node: node.inputs[0])
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], domain="com.acme", k=3),
        helper.make_node("Foo", ["a"], ["b"], domain="com.acme", k=2),
        helper.make_node("Resize", ["b", "", "s"], ["y"], mode="mystery"),
    ]
    model = onnx_model(nodes, X, Y, {"s": np.ones(2, "float32")}, domains=["com.acme"])
    found = {"com.acme::Foo with k=3": 1, "Resize with mode=mystery": 1}
    assert dict(inspect(model, []).operators) == found


def test_local_functions_with_a_converter_stay(acme, operators):
    model = acme()
    body = [helper.make_node("Exp", ["a"], ["b"])]
    opsets = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("com.acme", "Foo", ["a"], ["b"], body, opsets))
    assert operators(import_model(model).mod["main"]) == ["exp"]
    register("com.acme::Foo")(lambda node: relax.op.tanh(node.inputs[0]))
    assert operators(import_model(model).mod["main"]) == ["tanh"]


def test_functions_made_of_functions(onnx_model):
    """SoftmaxCrossEntropyLoss is defined by NegativeLogLikelihoodLoss, which is defined, too."""
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["x", "l"], ["y"])
    inputs = X | {"l": ("int64", [2])}
    assert import_model(onnx_model([node], inputs, {"y": ("float32", [])}))


def test_no_advice_for_what_is_supported():
    def is_known(name):
        return name in CONVERTERS or is_reviewed(helper.make_node(name, [], []), 28)

    assert not [name for name in _ADVICE if is_known(name)]
