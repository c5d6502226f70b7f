"""The paper's table 2: the class of ONNX operators, found from what they are lowered to.

Source: Niu et al., "DNNFusion", PLDI 2021, table 2. A weight (initializer) does not count as an
operand: the paper classifies an operator by its activations.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tvm import relax, tirx
from tvm.ir import GenericConst

from tvm_fusion import transform
from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.ecg.mapping_types.classify import classify
from tvm_fusion.ecg.mapping_types.table import MappingType, most_complex
from tvm_fusion.frontend import import_model

ELEMENTWISE_WITH_BROADCAST = "Add with broadcast"

TABLE_2 = {
    MappingType.ONE_TO_ONE: """Add Asin BatchNormalization Cast Ceil Clip Concat Cos Erf Exp Greater
        LeakyRelu Log Not PRelu Reciprocal Relu Round Sigmoid Sin Slice Split Sqrt Tanh Where""",
    MappingType.ONE_TO_MANY: "Expand Gather Resize Upsample",
    MappingType.MANY_TO_MANY: """AveragePool Conv ConvTranspose CumSum Einsum Gemm MaxPool
        InstanceNormalization ReduceProd ReduceMean Softmax""",
    MappingType.REORGANIZE: "Flatten Reshape Squeeze Unsqueeze",
    MappingType.SHUFFLE: "DepthToSpace SpaceToDepth Transpose",
}
PAPER = {name: kind for kind, names in TABLE_2.items() for name in names.split()}
PAPER[ELEMENTWISE_WITH_BROADCAST] = MappingType.ONE_TO_MANY

# What the analysis finds instead, and why that is right.
DISAGREEMENTS: dict[str, tuple[MappingType, str]] = {
    "CumSum": (
        MappingType.OPAQUE,
        "It is lowered to a recurrence over its own output: no element can be computed apart from "
        "the others, so that it fuses with nothing.",
    ),
}


@dataclass
class Node:
    """One node: shapes of its activations, values of its weights, attributes."""

    shapes: list[tuple[int, ...]]
    weights: list[np.ndarray | None] = field(default_factory=list)
    attributes: dict = field(default_factory=dict)
    dtypes: dict[int, int] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 18


def ints(*values):
    return np.array(values, np.int64)


def ones(*shape):
    return np.ones(shape, np.float32)


BOOL, FLOAT = onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT
IMAGE = (1, 4, 5, 7)
NODES = {
    "Add": Node([(5, 7), (5, 7)]),
    ELEMENTWISE_WITH_BROADCAST: Node([(5, 7), (7,)]),
    "BatchNormalization": Node([IMAGE], [ones(4), ones(4) / 2, ones(4) / 3, ones(4) * 2]),
    "Cast": Node([(5, 7)], attributes={"to": onnx.TensorProto.INT32}),
    "Clip": Node([(5, 7)], [np.float32(0), np.float32(6)]),
    "Concat": Node([(5, 7), (5, 3)], attributes={"axis": 1}),
    "Greater": Node([(5, 7), (5, 7)]),
    "Not": Node([(5, 7)], dtypes={0: BOOL}),
    "PRelu": Node([IMAGE], [ones(4, 1, 1) / 4]),
    "Slice": Node([(5, 7)], [ints(1), ints(6), ints(1), ints(2)]),
    "Split": Node([(6, 7)], [ints(2, 4)], {"axis": 0}, outputs=2),
    "Where": Node([(5, 7), (5, 7), (5, 7)], dtypes={0: BOOL}),
    "Expand": Node([(1, 7)], [ints(5, 7)]),
    "Gather": Node([(5, 7)], [ints(4, 0, 0)]),
    "Resize": Node(
        [IMAGE],
        [None, None, ints(1, 4, 9, 13)],
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
    ),
    "Upsample": Node([IMAGE], attributes={"scales": [1.0, 1.0, 2.0, 2.0]}, opset=8),
    "AveragePool": Node([IMAGE], attributes={"kernel_shape": [2, 2]}),
    "Conv": Node([IMAGE], [ones(3, 4, 3, 3)]),
    "ConvTranspose": Node([IMAGE], [ones(4, 3, 3, 3)]),
    "CumSum": Node([(5, 7)], [np.array(1, np.int64)]),
    "Einsum": Node([(5, 7), (7, 3)], attributes={"equation": "ij,jk->ik"}),
    "Gemm": Node([(5, 7)], [ones(7, 3), ones(3)]),
    "InstanceNormalization": Node([IMAGE], [ones(4), ones(4)]),
    "MaxPool": Node([IMAGE], attributes={"kernel_shape": [2, 2]}),
    "ReduceProd": Node([(5, 7)], attributes={"axes": [1]}, opset=13),
    "ReduceMean": Node([(5, 7)], attributes={"axes": [1]}, opset=13),
    "Softmax": Node([(5, 7)]),
    "Flatten": Node([IMAGE]),
    "Reshape": Node([(5, 6)], [ints(3, 10)]),
    "Squeeze": Node([(5, 1, 7)], [ints(1)]),
    "Unsqueeze": Node([(5, 7)], [ints(1)]),
    "DepthToSpace": Node([IMAGE], attributes={"blocksize": 2}),
    "SpaceToDepth": Node([(1, 3, 4, 6)], attributes={"blocksize": 2}),
    "Transpose": Node([(5, 7)]),
}
UNARY = Node([(5, 7)])


def model_of(name):
    node = NODES.get(name, UNARY)
    inputs = [
        helper.make_tensor_value_info(f"x{k}", node.dtypes.get(k, FLOAT), shape)
        for k, shape in enumerate(node.shapes)
    ]
    stored = [
        numpy_helper.from_array(value, f"w{k}")
        for k, value in enumerate(node.weights)
        if value is not None
    ]
    names = [f"x{k}" for k in range(len(inputs))]
    names += ["" if value is None else f"w{k}" for k, value in enumerate(node.weights)]
    outputs = [f"y{k}" for k in range(node.outputs)]
    graph = helper.make_graph(
        [helper.make_node(name.split()[0], names, outputs, **node.attributes)],
        "one_node",
        inputs,
        [onnx.ValueInfoProto(name=output) for output in outputs],
        stored,
    )
    opset = [helper.make_opsetid("", node.opset)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opset, ir_version=9), strict_mode=True
    )


def found(name):
    """Return the most complex class of an activation on its way through the lowered operator."""
    mod = import_model(model_of(name), FusionConfig()).mod
    with parse("cpu").tvm_target():
        mod = transform.Legalize()(transform.Rewrite()(transform.NormalizeImport()(mod)))
    types, weights = [], set()
    for binding in [b for block in mod["main"].body.blocks for b in block.bindings]:
        call = binding.value
        if not isinstance(call, relax.Call) or call.op.name != "relax.call_tir":
            continue
        func, args = mod[call.args[0]], list(call.args[1].fields)
        assert isinstance(func, tirx.PrimFunc)
        active = [not isinstance(arg, GenericConst) and arg not in weights for arg in args]
        if not any(active):
            weights.add(binding.var)
        types += [classify(func).operand(k) for k, is_active in enumerate(active) if is_active]
    assert types
    return most_complex(kind for kind in types if kind is not None)


@pytest.mark.parametrize("name", PAPER)
def test_table_2(name):
    if name in DISAGREEMENTS:
        expected, reason = DISAGREEMENTS[name]
        assert reason
        assert expected is not PAPER[name]
    else:
        expected = PAPER[name]
    assert found(name) is expected


def test_no_disagreement_is_about_an_operator_that_is_not_in_the_table():
    assert set(DISAGREEMENTS) <= set(PAPER)
