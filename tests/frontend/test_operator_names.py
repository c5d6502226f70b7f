"""Names of ONNX nodes and tensors, and variables of Relax modules, on what they became."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto as T
from onnx import helper, numpy_helper, parser
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion import FusionConfig
from tvm_fusion.core.decisions import recording
from tvm_fusion.core.names.source import Source, bindings_of, names_of, sources_of
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.rewrite.products.transposed_phases import TransposedConvByPhases
from tvm_fusion.transform import Legalize, Rewrite

STRANGE = 'it\'s "a" name\n/with spaces/größe'


def nodes_of(*nodes):
    """Make a model of nodes over vectors; the last node's output is the model's."""
    infos = [helper.make_tensor_value_info("x", T.FLOAT, [4])]
    out = helper.make_tensor_value_info(nodes[-1].output[0], T.FLOAT, [4])
    graph = helper.make_graph(list(nodes), "g", infos, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sources(mod, function="main"):
    """List what the calls of a function come from, in order."""
    found = (b for b in bindings_of(mod[function].body) if isinstance(b.value, relax.Call))
    return [sources_of(binding.var) for binding in found]


def names(mod, function="main"):
    return [names_of(found) for found in sources(mod, function)]


def test_nodes_with_names_without_and_with_the_same():
    model = nodes_of(
        helper.make_node("Exp", ["x"], ["a"], name="/block/Exp"),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["c"], name="/block/Exp"),
        helper.make_node("Sin", ["c"], ["t/1 ü"], name=STRANGE),
        helper.make_node("Relu", ["t/1 ü"], ["out"], name=""),
    )
    assert sources(import_model(model).mod) == [
        (Source("/block/Exp", ("a",)),),
        (Source("", ("b",)),),
        (Source("/block/Exp", ("c",)),),
        (Source(STRANGE, ("t/1 ü",)),),
        (Source("", ("out",)),),
    ]


@pytest.mark.parametrize(
    ("scopes", "name"),
    [
        ("['', 'layer.0', 'layer.0.ff', 'linear_3']", "layer.0.ff/node_exp"),
        ("['', 'exp']", "node_exp"),
        ("['layer', 3, 'exp']", "node_exp"),
        ("[", "node_exp"),
        ("7", "node_exp"),
    ],
)
def test_modules_that_pytorch_writes_beside_a_node(scopes, name):
    node = helper.make_node("Exp", ["x"], ["a"], name="node_exp")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert names(import_model(nodes_of(node)).mod) == [(name,)]


def test_nodes_of_local_functions():
    """By the call, which stands in the model, and their own names, or operators."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [
        helper.make_node("Exp", ["a"], ["t"], name="first"),
        helper.make_node("Inner", ["t"], ["b"], name="second", domain="own"),
    ]
    model = nodes_of(
        helper.make_node("Outer", ["x"], ["y"], name="/layer.0/Outer", domain="own"),
        helper.make_node("Sin", ["y"], ["z"], name="/layer.1/Sin"),
        helper.make_node("Outer", ["z"], ["out"], domain="own"),
    )
    model.opset_import.append(opsets[1])
    inner = [helper.make_node("Tanh", ["a"], ["b"])]
    model.functions.append(helper.make_function("own", "Outer", ["a"], ["b"], body, opsets))
    model.functions.append(helper.make_function("own", "Inner", ["a"], ["b"], inner, opsets[:1]))
    assert names(import_model(model).mod) == [
        ("/layer.0/Outer/first",),
        ("/layer.0/Outer/Tanh",),
        ("/layer.1/Sin",),
        ("out/first",),
        ("out/Tanh",),
    ]


def test_a_node_that_becomes_several_operators():
    model = nodes_of(
        helper.make_node("Softplus", ["x"], ["a"], name="first"),
        helper.make_node("Mish", ["a"], ["out"], name="second"),
    )
    model.opset_import[0].version = 18
    found = names(import_model(model).mod)
    assert len(found) > 2
    assert set(found) == {("first",), ("second",)}
    assert found == sorted(found)


def test_names_in_branches_and_loops():
    inner = [helper.make_tensor_value_info(name, T.FLOAT, [4]) for name in ("t", "e", "s", "s2")]
    counter = helper.make_tensor_value_info("i", T.INT64, [])
    flags = [helper.make_tensor_value_info(name, T.BOOL, []) for name in ("k", "k2")]
    exp = helper.make_node("Exp", ["x"], ["t"], name="/then/Exp")
    then = helper.make_graph([exp], "then", [], inner[:1])
    tanh = helper.make_node("Tanh", ["x"], ["e"])
    other = helper.make_graph([tanh], "other", [], inner[1:2])
    steps = [
        helper.make_node("Sin", ["s"], ["s1"], name="/body/Sin"),
        helper.make_node("Add", ["s1", "s"], ["s2"], name="/body/Add"),
        helper.make_node("Identity", ["k"], ["k2"]),
    ]
    body = helper.make_graph(steps, "b", [counter, flags[0], inner[2]], [flags[1], inner[3]])
    model = nodes_of(
        helper.make_node("If", ["c"], ["y"], name="/If", then_branch=then, else_branch=other),
        helper.make_node("Loop", ["n", "", "y"], ["z"], name="/Loop", body=body),
        helper.make_node("Relu", ["z"], ["out"], name="/Relu"),
    )
    model.graph.input.append(helper.make_tensor_value_info("c", T.BOOL, []))
    model.graph.input.append(helper.make_tensor_value_info("n", T.INT64, []))
    mod = import_model(model).mod
    assert names(mod, "_If_then") == [("/then/Exp",)]
    assert names(mod, "_If_other") == [("e",)]
    assert names(mod, "_Loop_body") == [("/body/Sin",), ("/body/Add",)]
    assert set(names(mod)) == {("/If",), ("/Loop",), ("/Relu",)}


MODEL = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 8, 6, 6] x, float[1, 8, 6, 6] r) => (float[1, 4, 6, 6] y)
    <float[4, 8, 1, 1] w = {%s}, float[4] s = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4},
     float[4] m = {0, 0, 0, 0}, float[4] v = {1, 1, 1, 1}> {
    d = Dropout(x)
    a = Add(d, r)
    c = Conv(a, w)
    n = BatchNormalization(c, s, b, m, v)
    y = Relu(n)
}"""


def test_a_norm_that_is_folded():
    model = parser.parse_model(MODEL % ", ".join(map(str, range(32))))
    for node in model.graph.node:
        node.name = f"/{node.op_type}"
    mod = import_model(model).mod
    # The scale went into the weights; what is left of the norm is a sum.
    assert names(mod) == [("/Add",), ("/Conv",), ("/BatchNormalization",), ("/Relu",)]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_names_through_the_stages(precision):
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2, 8, 16] x) => (float[2, 8, 48] y)'
        "<float[16, 16] q = {%s}, float[16, 16] k = {%s}, float[16, 16] v = {%s}>"
        "{ a = MatMul(x, q) b = MatMul(x, k) c = MatMul(x, v) y = Concat<axis=2>(a, b, c) }"
    )
    values = (", ".join(str((i * j) % 7 - 3.0) for i in range(256)) for j in (3, 5, 6))
    model = parser.parse_model(text % tuple(values))
    imported = import_model(model, FusionConfig(precision=precision)).mod
    with tvm.target.Target("llvm"):
        rewritten = Rewrite()(imported)
        legal = Legalize()(rewritten)
    for mod in (rewritten, legal):
        found = names(mod)
        assert all(found)
        assert {name for own in found for name in own} == {"a", "b", "c", "y"}
        assert any(set("abc") <= set(own) for own in found)  # one product of the three


def test_variables_of_a_relax_module():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            with R.dataflow():
                hidden = R.exp(x)
                result = R.tanh(hidden)
                R.output(result)
            return result

    assert names(import_model(Module).mod) == [("hidden",), ("result",)]


def test_constants_fold_as_before():
    """Nodes over constants leave no operator, and no name."""
    model = nodes_of(
        helper.make_node("Constant", [], ["one"], name="One", value_floats=[1.0] * 4),
        helper.make_node("Add", ["one", "one"], ["two"], name="Two"),
        helper.make_node("Mul", ["x", "two"], ["out"], name="Mul"),
    )
    onnx.checker.check_model(model)
    assert names(import_model(model).mod) == [("Mul",)]


def test_decisions_about_a_transposed_convolution_name_it():
    rng = np.random.default_rng()
    weight = numpy_helper.from_array(rng.normal(size=(4, 3, 4, 4)).astype("float32"), "w")
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], name="/up/ConvTranspose", strides=[2, 2]
    )
    shapes = {"x": [1, 4, 5, 5], "y": [1, 3, 12, 12]}
    x, y = (helper.make_tensor_value_info(n, T.FLOAT, shape) for n, shape in shapes.items())
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    imported = import_model(model)
    with parse("cpu").tvm_target(), recording() as decisions:
        TransposedConvByPhases()(imported.mod)
    found = [d.producer_names for d in decisions if d.code == "transposed_conv"]
    assert found == [("/up/ConvTranspose",)]
