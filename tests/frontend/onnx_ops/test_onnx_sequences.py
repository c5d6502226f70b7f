"""Sequences of known length, inside a model and as its inputs and outputs."""

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import tvm_fusion
from tvm_fusion import onnx_backend
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
X = np.random.default_rng(2).standard_normal((7, 5)).astype("float32")


def test_split_insert_erase_and_concat(onnxruntime_run, tmp_path):
    model = parser.parse_model(
        HEAD
        + """graph (float[7, 5] x) => (float[a, b] y, float[c, 5] z, int64 n, float[e, 5, f] w)
        <int64 three = {3}, int64 back = {-1}, int64 first = {0}, int64[2] sizes = {2, 5}> {
            parts = SplitToSequence <axis = 0> (x, three)
            last = SequenceAt (parts, back)
            more = SequenceInsert (parts, last, first)
            fewer = SequenceErase (more, back)
            z = ConcatFromSequence <axis = 0> (fewer)
            n = SequenceLength (fewer)
            columns = SplitToSequence <axis = 1, keepdims = 0> (x)
            y = ConcatFromSequence <axis = 0, new_axis = 1> (columns)
            uneven = SplitToSequence <axis = 0> (x, sizes)
            second = SequenceAt (uneven, back)
            both = SequenceConstruct (second, second)
            w = ConcatFromSequence <axis = -1, new_axis = 1> (both)
        }"""
    )
    program = tvm_fusion.load(tvm_fusion.compile(model, "cpu").export(tmp_path / "model"))
    found = program.run({"x": X})
    for one, other in zip(found.values(), onnxruntime_run(model, x=X), strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)


MAPS = """graph (seq(float[n, 3]) s, float[3] t) => (seq(float[n, 3]) u, seq(int64[2]) shapes) {
    u, shapes = SequenceMap (s, t) <body = one (float[n, 3] e, float[3] v)
        => (float[n, 3] f, int64[2] shape) {
        f = Mul (e, v)
        shape = Shape (e)
    }>
}"""


def test_elements_of_sequences_are_inputs_and_outputs(tmp_path):
    model = parser.parse_model(HEAD + MAPS)
    with pytest.raises(UserError, match=r"input s, which is a sequence.*--dim s_length=LENGTH"):
        import_model(model)
    dims = {"s_length": 2, "s_0_0": 4, "s_1_0": tvm_fusion.DimRange(1, 9)}
    artifact = tvm_fusion.compile(model, "cpu", dims=dims)
    signature = artifact.manifest["functions"]["main"]
    assert [spec["name"] for spec in signature["inputs"]] == ["s_0", "s_1", "t"]
    assert [spec["name"] for spec in signature["outputs"]] == [
        *("u_0", "u_1", "shapes_0", "shapes_1"),
    ]
    program = tvm_fusion.load(artifact.export(tmp_path / "model"))
    feeds = {"s_0": X[:4, :3], "s_1": X[:, 2:], "t": X[0, :3]}
    found = program.run({name: np.ascontiguousarray(array) for name, array in feeds.items()})
    np.testing.assert_allclose(found["u_0"], feeds["s_0"] * feeds["t"], rtol=1e-6)
    np.testing.assert_allclose(found["u_1"], feeds["s_1"] * feeds["t"], rtol=1e-6)
    assert [list(found[f"shapes_{i}"]) for i in range(2)] == [[4, 3], [7, 3]]


def test_the_backend_takes_and_returns_lists():
    model = parser.parse_model(HEAD + MAPS)
    elements = [X[:4, :3].copy(), X[:, 2:].copy(), X[:1, :3].copy()]
    found = onnx_backend.prepare(model).run([elements, X[0, :3].copy()])
    assert [len(output) for output in found] == [3, 3]
    for one, element in zip(found[0], elements, strict=True):
        np.testing.assert_allclose(one, element * X[0, :3], rtol=1e-6)


def test_a_loop_over_a_sequence_needs_a_number_of_trips():
    text = """graph (int64 trips, float[3] x) => (seq(float[3]) s) <bool yes = {1}> {
        none = SequenceEmpty ()
        s = Loop (trips, yes, none) <body = step (int64 i, bool go, seq(float[3]) before)
            => (bool again, seq(float[3]) after) {
            again = Identity (go)
            number = Cast <to = 1> (i)
            sum = Add (x, number)
            after = SequenceInsert (before, sum)
        }>
    }"""
    model = parser.parse_model(HEAD + text)
    with pytest.raises(UserError, match="state before is a sequence"):
        import_model(model)
    found = onnx_backend.prepare(model).run([np.int64(3), X[0, :3].copy()])
    np.testing.assert_allclose(found[0], X[0, :3] + np.arange(3)[:, None], rtol=1e-6)


def test_positions_and_lengths_that_do_not_fit_are_refused():
    def sentence(nodes, output=TensorProto.FLOAT):
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
            [helper.make_tensor_value_info("y", output, None)],
            [helper.make_tensor("at", TensorProto.INT64, [], [5])],
        )
        opsets = [helper.make_opsetid("", 18)]
        with pytest.raises(UserError) as error:
            import_model(helper.make_model(graph, opset_imports=opsets, ir_version=9))
        return str(error.value)

    both = helper.make_node("SequenceConstruct", ["x", "x"], ["s"])
    at = helper.make_node("SequenceAt", ["s", "at"], ["y"])
    assert "at position 5 of a sequence of 2" in sentence([both, at])
    empty = helper.make_node("SequenceEmpty", [], ["s"])
    join = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    assert "of an empty sequence" in sentence([empty, join])
