"""What a failed import says: the node, its inputs, and advice that works when it is followed."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tvm_fusion.config import FusionConfig
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.onnx_ops import CONVERTERS, register
from tvm_fusion.frontend.preflight import advice_for
from tvm_fusion.signature import DimRange


def parsed(text, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> g {text}')


_IN_TWOS = "int64[4] axes = {0, 1, 2, 3}, int64[4] two = {1, 1, 1, 2}"
# For each cause: a model, options with which it fails, what is said, and what is advised; then the
# model and the options of someone who follows the advice.
_SMOOTH = 'Resize<mode = "linear", antialias = 1>'
CAUSES = {
    "shapes that clash": (
        "(float[2,3] x, float[4,5] w) => (float[a,b] y) { y = MatMul(x, w) }",
        {},
        "operator MatMul (Matmul requires ",
        "x float32 [2, 3], w float32 [4, 5]",
        "ONNX's own rules do not allow: Incompatible dimensions for matrix multiplication",
        "(float[2,3] x, float[3,5] w) => (float[a,b] y) { y = MatMul(x, w) }",
        {},
    ),
    "strides of zero": (
        "(float[1,1,4,4] x, float[1,1,3,3] w) => (float[a,b,c,d] y)"
        " { y = Conv<strides = [0, 0]>(x, w) }",
        {},
        "operator Conv",
        "x float32 [1, 1, 4, 4]",
        "ONNX's own rules do not allow: Attribute strides must only contain positive values",
        "(float[1,1,4,4] x, float[1,1,3,3] w) => (float[a,b,c,d] y)"
        " { y = Conv<strides = [1, 1]>(x, w) }",
        {},
    ),
    "a shape that is an input": (
        f"(float[1,1,2,3] x, float[4] s) => (float[a,b,c,d] y) {{ y = {_SMOOTH}(x, , s) }}",
        {},
        "operator Resize",
        "x float32 [1, 1, 2, 3], s float32 [4]",
        "bind s with --constant s=VALUE",
        f"(float[1,1,2,3] x, float[4] s) => (float[a,b,c,d] y) {{ y = {_SMOOTH}(x, , s) }}",
        {"constants": {"s": np.array([1, 1, 2, 2], "float32")}},
    ),
    **{
        f"{op}, whose {name} TVM's converter wants as a constant": (
            f"({x} x, int64{shape} i) => (float[{result}] y) {{ y = {op}(x, i) }}",
            {},
            f"operator {op} (its {name} is computed or an input of the model)",
            "x float32 [",
            "bind i with --constant i=VALUE",
            f"({x} x, int64{shape} i) => (float[{result}] y) {{ y = {op}(x, i) }}",
            {"constants": {"i": np.array(value)}},
        )
        for op, name, x, shape, result, value in (
            ("CumSum", "axis", "float[4,6]", "", "a,b", 1),
            ("ReduceSum", "axes", "float[4,6]", "[1]", "a,b", [1]),
        )
    },
    "an axis that is computed": (
        "(float[4,6] x, float[2] w) => (float[4,6] y) { i = ArgMax<keepdims = 0>(w) "
        "y = CumSum(x, i) }",
        {},
        "operator CumSum (its axis is computed or an input of the model)",
        "x float32 [4, 6], i int64 []",
        "bind w with --constant w=VALUE",
        "(float[4,6] x, float[2] w) => (float[4,6] y) { i = ArgMax<keepdims = 0>(w) "
        "y = CumSum(x, i) }",
        {"constants": {"w": np.array([0, 1], "float32")}},
    ),
    "a shape that another operator takes from an input": (
        f"(float[2,3,4,4] x, int64[4] s) => (float[a,b,c,d] y) <{_IN_TWOS}> "
        "{ t = Slice(x, s, s, axes, two) y = LRN<size = 3>(t) }",
        {},
        "operator LRN on a tensor whose shape is known only at run time",
        "t float32 of 4 axes",
        "bind s with --constant s=VALUE",
        f"(float[2,3,4,4] x, int64[4] s) => (float[a,b,c,d] y) <{_IN_TWOS}> "
        "{ t = Slice(x, s, s, axes, two) y = LRN<size = 3>(t) }",
        {"constants": {"s": np.array([0, 1, 2, 3])}},
    ),
    "a shape of elements": (
        "(float[2,3,4,4] x, int64[4,1] n) => (float[a,b,c,d] y) "
        f"<{_IN_TWOS}, int64[1] all = {{-1}}> "
        "{ s = Reshape(n, all) t = Slice(x, s, s, axes, two) y = LRN<size = 3>(t) }",
        {},
        "operator LRN on a tensor whose shape is known only at run time",
        "t float32 of 4 axes",
        "compute its shape of shapes (Shape)",
        "(float[2,3,4,4] x) => (float[a,b,c,d] y) <int64[4] zero = {0, 0, 0, 0}> "
        "{ s = Shape(x) t = Slice(x, zero, s) y = LRN<size = 3>(t) }",
        {},
    ),
    "an operator of a later opset": (
        "(float[2,3] x) => (float[a,b] y) { y = Gelu(x) }",
        {},
        "Gelu (1x)",
        "",
        "export with opset 20 or later",
        "(float[2,3] x) => (float[a,b] y) { y = Gelu(x) }",
        {"opset": 20},
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_advice_works(cause):
    text, options, found, inputs, advice, changed, other = CAUSES[cause]
    with pytest.raises(UserError) as error:
        import_model(parsed(text), FusionConfig(**options))
    sentence = str(error.value)
    assert found in sentence
    assert inputs in sentence
    assert advice in sentence
    other = dict(other)
    import_model(parsed(changed, other.pop("opset", 18)), FusionConfig(**other))


_W = "float[1,1,5,5] w"
# What ONNX does not allow, or only ONNX Runtime finds at the call: a graph, and what is said of it.
WRONG = [
    ("(float[2,3] x, int64[3] w) => (float[2,3] y) { y = Add(x, w) }", "B has inconsistent type"),
    ("(float[2,3] x, float[2] w) => (float[a,b] y) { y = Gather(x, w) }", "unsupported type"),
    ('(float[3] x) => (float[3] y) { y = LeakyRelu<alpha = "a">(x) }', "Expected: 'FLOAT'"),
    ("(float[2,3] x) => (float[a] y) <int64[1] s = {7}> { y = Reshape(x, s) }", "if ONNX allows"),
    (
        "(float[2,3] x) => (float[a,b] y) <int64[2] s = {-1, 4}> { y = Reshape(x, s) }",
        "ONNX's own rules do not allow: Dimension could not be inferred",
    ),
    (f"(float[1,1,2,3] x, {_W}) => (float[a,b,c,d] y) {{ y = Conv(x, w) }}", "[1, 1, -2, -1]"),
    (
        "(float[1,1,2,3] x) => (float[a,b,c,d] y) { y = MaxPool<kernel_shape = [5, 1]>(x) }",
        "by windows of 5 elements along 2, padding included",
    ),
    ("(float[3,4] x) => (float[a,b] y) <int64[2] s = {0, -5}, int64[1] a = {1}> "
     "{ y = Pad(x, s, , a) }", "makes a tensor of shape [3, -1]"),
    ("() => (float[a] y) <int64[1] s = {-2}> { y = ConstantOfShape(s) }", "must have non-negative"),
    (
        "(float[2,3] x) => (float[2,a] y, float[2,b] z) <int64[2] s = {2, 2}> "
        "{ y, z = Split<axis = 1>(x, s) }",
        "Split of 3 elements into 2, 2",
    ),
    (
        "(float[2,3] x) => (float[2,a] y, int64[2,b] z) <int64[1] k = {4}> { y, z = TopK(x, k) }",
        "TopK of 4 of 3 elements",
    ),
    ("(float[3] x, bool[3] w) => (bool[3] y) { y = And(w, x) }", "And of float32"),
    ("(float[3] x) => () { y = Relu(x) }", "a model without outputs"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "found"), WRONG)
def test_models_that_are_wrong(text, found):
    with pytest.raises(UserError) as error:
        import_model(parsed(text))
    assert found in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("raised", [AttributeError("'Var' has no 'x'"), ZeroDivisionError()])
def test_any_error_of_a_converter_names_the_node(raised):
    """Whatever a converter raises: one sentence, and the error itself as its cause."""

    @register("com.acme::Breaks")
    def breaks(node):
        raise raised

    try:
        node = helper.make_node("Breaks", ["t"], ["y"], name="third", domain="com.acme")
        model = parsed("(float[n,3] x) => (float y) { t = Relu(x) }")
        model.graph.node.append(node)
        model.opset_import.append(helper.make_opsetid("com.acme", 1))
        with pytest.raises(UserError) as error:
            import_model(model, FusionConfig(dims={"n": DimRange(1, 4)}))
    finally:
        del CONVERTERS["com.acme::Breaks"]
    sentence = str(error.value)
    assert "at operator com.acme::Breaks 'third'" in sentence
    assert "(its inputs: t float32 [n, 3])" in sentence
    assert "its converter has a fault: report this sentence with the node" in sentence
    assert "\n" not in sentence
    assert error.value.__cause__ is raised


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("com.microsoft::NhwcMaxPool", "optimize it at ORT_ENABLE_BASIC"),
        ("com.microsoft::BeamSearch", "export the decoder alone"),
        ("com.microsoft::CDist", "register a converter"),  # exporters write it, no optimization
        ("com.acme::Foo", "register a converter"),
        ("ai.onnx.ml::DictVectorizer", "on the host"),
        ("Bernoulli", "make the random numbers an input"),
    ],
)
def test_advice_of_operators(name, advice):
    assert advice in advice_for(name, 18)
    assert name in advice_for(name, 18)
    assert name not in CONVERTERS
