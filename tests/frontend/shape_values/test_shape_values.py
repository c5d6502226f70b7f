"""Integer tensors over symbolic extents against onnx's reference implementation."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax, tirx

from tvm_fusion.frontend.shape_values import Facts, SymbolicArray, array_of, evaluate
from tvm_fusion.frontend.shape_values.elements import Real
from tvm_fusion.frontend.shape_values.facts import at
from tvm_fusion.signature import DimRange

OPSET = 18
SIZES = ((1, 2), (3, 5), (8, 9), (5, 16))
RANGES = {"n": DimRange(1, 8), "m": DimRange(2, 16)}


class Chain:
    """Nodes over ``Shape(x)`` of x[n, m, 6], evaluated symbolically and by the reference."""

    def __init__(self):
        self.vars = {name: tirx.Var(name, "int64") for name in RANGES}
        self.facts = Facts({var: RANGES[name] for name, var in self.vars.items()})
        self.nodes, self.stored = [], []
        shape = [self.vars["n"], self.vars["m"], tirx.IntImm("int64", 6)]
        self.values = {"x": relax.Var("x", relax.TensorType(shape, "float32"))}

    def const(self, value, dtype="int64"):
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        self.values[name] = relax.const(np.asarray(value, dtype), dtype)
        return name

    def op(self, op_type, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op_type, list(inputs), names, **attributes)
        given = [self.values[name] if name else None for name in inputs]
        found = evaluate(node, given, OPSET, self.facts)
        assert found is not None, f"{op_type} is not evaluated"
        self.nodes.append(node)
        self.values |= dict(zip(names, found, strict=True))
        return names[0] if outputs == 1 else names

    def check(self, name):
        array = array_of(self.values[name])
        info = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
        out = [onnx.ValueInfoProto(name=name)]
        graph = helper.make_graph(self.nodes, "g", [info], out, self.stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        reference = ReferenceEvaluator(model)
        for n, m in SIZES:
            (wanted,) = reference.run(None, {"x": np.zeros((n, m, 6), "float32")})
            extents = {"n": np.asarray(n), "m": np.asarray(m)}
            flat = [
                e.run(extents) if isinstance(e, Real) else at(e, extents)
                for e in array.elements.flat
            ]
            found = np.array([np.asarray(v).item() for v in flat]).reshape(array.elements.shape)
            np.testing.assert_array_equal(found, wanted)
            assert array.dtype == wanted.dtype.name


def test_casts_slices_and_concatenation_as_tf2onnx_writes_them():
    c = Chain()
    s32 = c.op("Cast", c.op("Shape", "x"), to=TensorProto.INT32)
    first = c.op("Slice", s32, c.const([0]), c.const([1]), c.const([0]))
    joined = c.op("Concat", first, c.const([16, 2], "int32"), axis=0)
    c.check(joined)
    c.check(c.op("Cast", joined, to=TensorProto.INT64))


def test_arithmetic_of_extents():
    c = Chain()
    s = c.op("Shape", "x")
    n, m = (c.op("Gather", s, c.const(i)) for i in (0, 1))
    for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"):
        c.check(c.op(op, c.op("Add", m, n), n))
    less = c.op("Neg", m)
    c.check(less)
    for op in ("Div", "Mod"):  # up to a multiple of 8
        c.check(c.op(op, less, c.const([8])))
    c.check(c.op("ReduceProd", s, keepdims=0))
    c.check(c.op("ReduceSum", s, c.const([0])))
    c.check(c.op("ReduceMax", c.op("Unsqueeze", s, c.const([0])), c.const([1]), keepdims=0))
    c.check(c.op("Size", "x"))


def test_moves_of_extents():
    c = Chain()
    s = c.op("Shape", "x")
    c.check(c.op("Split", s, c.const([1, 2]), outputs=2)[1])
    c.check(c.op("Reshape", c.op("Expand", s, c.const([2, 3])), c.const([3, -1])))
    c.check(c.op("Transpose", c.op("Reshape", s, c.const([1, 3])), perm=[1, 0]))
    c.check(c.op("Tile", s, c.const([2])))
    c.check(c.op("Pad", s, c.const([1, 2])))
    c.check(c.op("GatherND", s, c.const([[2], [0]])))
    c.check(c.op("ScatterND", s, c.const([[1]]), c.op("Gather", s, c.const([0]))))
    c.check(c.op("ScatterElements", s, c.const([0]), c.const([-1])))
    c.check(c.op("Gather", s, c.const([[0, -1], [1, 1]])))
    c.check(c.op("Squeeze", c.op("Shape", "x", start=1, end=2)))
    c.check(c.op("Compress", s, c.const([True, False, True], "bool")))
    c.check(c.op("Concat", s, s, axis=0))


def test_conditions_that_ranges_decide_and_those_they_leave():
    c = Chain()
    s = c.op("Shape", "x")
    never = c.op("Equal", s, c.const([-1, -1, -1]))
    assert isinstance(c.values[never], type(relax.const(True)))
    c.check(c.op("Where", never, c.const([1, 1, 1]), s))
    m, n = (c.op("Gather", s, c.const(i)) for i in (1, 0))
    assert isinstance(c.values[c.op("Greater", m, c.const(1))], type(relax.const(True)))
    open_ = c.op("Greater", m, n)
    assert isinstance(c.values[open_], SymbolicArray)
    c.check(c.op("Where", open_, m, n))
    c.check(c.op("Not", open_))


def test_few_extents_prove_what_no_rule_does():
    n, m = (tirx.Var(name, "int64") for name in "nm")
    facts = Facts({n: DimRange(1, 64), m: DimRange(1, 1 << 20)})
    assert facts.proves((n + 1) // 2 <= n)
    assert facts.decide((n + 3) // 2 <= n) is None  # not for 1 and 2
    assert facts.decide(tirx.EQ(n * n % 4, tirx.IntImm("int64", 3))) is False
    assert facts.decide((m + 1) // 2 <= m) is None  # too many to try


@pytest.mark.parametrize("scale", [0.5, 2.0, 1.5, 0.7, 0.1, 1 / 3, 0.6])
@pytest.mark.parametrize("op", ["Floor", "Ceil"])
def test_floating_point_extents_are_those_of_float32(op, scale):
    c = Chain()
    m = c.op("Cast", c.op("Gather", c.op("Shape", "x"), c.const([1])), to=TensorProto.FLOAT)
    node = helper.make_node(op, ["p"], ["q"])
    product = c.op("Mul", m, c.const([scale], "float32"))
    if evaluate(node, [c.values[product]], OPSET, c.facts) is None:
        return  # the ratio differs from float32 at some extent: computed at run time
    c.check(c.op("Cast", c.op(op, product), to=TensorProto.INT64))


def test_what_is_taken_is_what_float32_says_at_every_extent():
    c = Chain()
    m = c.op("Cast", c.op("Gather", c.op("Shape", "x"), c.const([1])), to=TensorProto.FLOAT)
    for scale in np.random.default_rng().random(40).astype("float32"):
        product = c.op("Mul", m, c.const([scale], "float32"))
        node = helper.make_node("Floor", ["p"], ["q"])
        found = evaluate(node, [c.values[product]], OPSET, c.facts)
        if found is not None:
            element = array_of(found[0]).elements.item()
            sizes = np.arange(2, 17)
            wanted = np.floor(sizes.astype("float32") * scale).astype("int64")
            over = at(element.over, {"m": sizes}) if isinstance(element, Real) else int(element)
            np.testing.assert_array_equal(np.broadcast_to(over, wanted.shape), wanted)


def test_scales_of_sizes_over_extents_cancel():
    c = Chain()
    s = c.op("Cast", c.op("Shape", "x"), to=TensorProto.FLOAT)
    target = c.op("Mul", s, c.const([2, 2, 2], "float32"))
    ratio = array_of(c.values[c.op("Div", target, s)])
    assert [(int(r.over), int(r.under)) if isinstance(r, Real) else (float(r), 1)
            for r in ratio.elements] == [(2, 1)] * 3  # fmt: skip


def test_products_beyond_32_bits_are_left_to_the_model():
    big = tirx.Var("big", "int64")
    facts = Facts({big: DimRange(1, 2**20)})
    x = relax.Var("x", relax.TensorType([big, big], "float32"))
    (shape,) = evaluate(helper.make_node("Shape", ["x"], ["s"]), [x], OPSET, facts)
    cast = helper.make_node("Cast", ["s"], ["t"], to=TensorProto.INT32)
    (narrow,) = evaluate(cast, [shape], OPSET, facts)
    product = helper.make_node("ReduceProd", ["t"], ["p"])
    assert evaluate(product, [narrow], OPSET, facts) is None
    assert evaluate(product, [shape], OPSET, facts) is not None


def test_the_rank_is_a_number():
    c = Chain()
    rank = c.op("Size", c.op("Shape", "x"))
    assert c.values[rank].value.numpy() == 3


def test_division_by_what_may_be_zero_or_of_what_may_be_negative_is_left():
    c = Chain()
    s = c.op("Shape", "x")
    n = c.op("Gather", s, c.const(0))
    zero = c.op("Sub", n, c.const(1))
    node = helper.make_node("Div", ["a", "b"], ["c"])
    assert evaluate(node, [c.values[n], c.values[zero]], OPSET, c.facts) is None
    less = c.op("Sub", n, c.const(3))
    assert evaluate(node, [c.values[less], c.values[n]], OPSET, c.facts) is None
