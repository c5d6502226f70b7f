"""Nodes in any order become ones that are computed before they are read."""

import onnx
import pytest

from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.onnx_model.order import in_order

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[3] x, bool c) => (float[3] y, float[3] z) {
    a = Neg(x)
    b = Exp(a)
    y = If(c) <then_branch = t () => (float[3] p) { q = Add(b, a)  p = Neg(q) },
              else_branch = e () => (float[3] r) { r = Identity(x) }>
    z = Mul(a, x)
}"""


def names(nodes):
    return [node.output[0] for node in nodes]


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)])
def test_nodes_and_branches_are_sorted(order):
    model = onnx.parser.parse_model(TEXT)
    assert in_order(model) is model
    mixed = onnx.parser.parse_model(TEXT)
    nodes = [model.graph.node[i] for i in order]
    del mixed.graph.node[:]
    mixed.graph.node.extend(nodes)
    conditional = next(node for node in mixed.graph.node if node.op_type == "If")
    branch = conditional.attribute[0].g
    inner = [onnx.NodeProto.FromString(n.SerializeToString()) for n in branch.node]
    del branch.node[:]
    branch.node.extend(reversed(inner))
    before = mixed.SerializeToString()
    found = in_order(mixed)
    onnx.checker.check_model(found)
    assert sorted(names(found.graph.node)) == ["a", "b", "y", "z"]
    assert mixed.SerializeToString() == before
    assert import_model(mixed).signatures["main"].outputs[0].shape == (3,)


def test_a_cycle_stays():
    model = onnx.parser.parse_model(TEXT)
    model.graph.node[0].input[0] = "z"
    found = in_order(model)
    assert names(found.graph.node) == names(model.graph.node)
