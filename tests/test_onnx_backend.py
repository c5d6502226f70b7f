"""Models through the onnx package's backend interface, and the standard's own tests."""

import unittest

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from rounding import assert_sums_close

import tvm_fusion.onnx_backend as backend
from tvm_fusion import UserError

pytestmark = pytest.mark.slow_beyond(2)


@pytest.fixture(scope="module")
def sums():
    """Sum over axes that are an input, of a tensor with a symbolic extent."""
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
            "sums",
            [
                helper.make_tensor_value_info("x", T.FLOAT, ["n", 3]),
                helper.make_tensor_value_info("axes", T.INT64, [1]),
            ],
            [helper.make_tensor_value_info("y", T.FLOAT, None)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )


def test_a_model_is_compiled_for_each_value_of_its_axes_once(sums):
    prepared = backend.prepare(sums, "CPU")
    generator = np.random.default_rng(0)
    for rows, axis, programs in ((2, 0, 1), (2, 1, 2), (2, 0, 2), (5, 0, 2), (9, 0, 3)):
        x = generator.standard_normal((rows, 3)).astype("float32")
        (y,) = prepared.run([x, np.array([axis])])
        assert_sums_close(y, x.astype("float64").sum(axis), np.abs(x).sum(axis), x.shape[axis])
        assert len(prepared._programs) == programs


def test_inputs_by_name_and_outputs_by_name(sums, tmp_path):
    onnx.save(sums, tmp_path / "sums.onnx")
    x = np.ones((4, 3), "float32")
    found = backend.run_model(tmp_path / "sums.onnx", {"x": x, "axes": np.array([1])})
    assert found["y"].tolist() == [3, 3, 3, 3]
    single = backend.run_model(sums, x, constants={"axes": 0})
    assert single.y.tolist() == [4, 4, 4]


def test_one_operator():
    x = np.array([-1.5, 2.5], "float32")
    (y,) = backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    assert y.tolist() == [0, 2.5]
    node = helper.make_node("Tile", ["x", "n"], ["y"])
    (y,) = backend.run_node(node, {"x": x, "n": np.array([2])}, opset_version=13)
    assert y.tolist() == [-1.5, 2.5, -1.5, 2.5]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: backend.prepare(m, "TPU"), "device 'TPU'; expected CPU, or CUDA"),
        (lambda m: backend.prepare(m).run([]), "0 inputs; expected 2: x, axes"),
        (lambda m: backend.prepare(m).run([], mode=1), "option 'mode' of a run; expected none"),
        (
            lambda m: backend.prepare(m, speed=1).run([np.ones((2, 3))] * 2),
            "there is no option 'speed'",
        ),
    ],
)
def test_mistakes(sums, call, words):
    with pytest.raises(UserError, match=words):
        call(sums)


@pytest.mark.slow
def test_the_standard_s_tests_run(recwarn):
    """Some operators, models and inputs that carry shapes, as BackendTest runs any backend."""
    from onnx.backend.test import BackendTest

    suite = BackendTest(backend.Backend, __name__)
    names = ("reduce_sum_keepdims_random", "cumsum_1d", "sign_model", "Softplus", "operator_pow")
    for name in names:
        suite.include(f"^test_{name}_cpu$")
    result = unittest.TestResult()
    suite.test_suite.run(result)
    assert result.wasSuccessful(), [*result.failures, *result.errors]
    assert result.testsRun - len(result.skipped) == len(names)


def test_bad_inputs_of_the_first_run_leave_axes_as_they_are(sums):
    prepared = backend.prepare(sums)
    with pytest.raises(UserError):
        prepared.run([np.ones((2, 3), "float32"), np.array([7])])  # no such axis
    assert prepared._bound == ()
    (y,) = prepared.run([np.ones((2, 3), "float32"), np.array([0])])
    assert y.tolist() == [2, 2, 2]


def rows_model():
    """Softmax of rows, both extents of which are symbolic."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]>'
        "rows (float[n, m] x) => (float[n, m] y) { y = Softmax<axis = 1>(x) }"
    )
    return onnx.parser.parse_model(text)


def softmax(x):
    e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.slow
def test_one_program_for_all_sizes_of_a_range():
    prepared = backend.prepare(rows_model())
    for shape, programs in (((3, 100), 1), ((1, 7), 1), ((8, 256), 1), ((9, 256), 2), ((2, 5), 2)):
        x = np.random.default_rng().standard_normal(shape).astype("float32")
        np.testing.assert_allclose(prepared.run([x])[0], softmax(x), rtol=1e-5, atol=1e-7)
        assert len(prepared._programs) == programs
    alone = backend.prepare(rows_model(), ranges=False)
    for columns in (4, 5):
        alone.run([np.zeros((2, columns), "float32")])
    assert len(alone._programs) == 2


@pytest.mark.parametrize("when", ["compiled", "run"])
def test_extents_alone_where_a_range_does_not_work(when, monkeypatch):
    tried = []

    def failing(model, target, options, **others):
        tried.append(dict(options["dims"]))
        is_range = any(not isinstance(dim, int) for dim in options["dims"].values())
        if is_range and when == "compiled":
            raise ValueError("an extent that is not known")
        return compile_model(model, target, options, **others)

    def refusing(path):
        program = load(path)
        if len(program.dims):
            program.run = lambda *_, **__: (_ for _ in ()).throw(UserError("unequal extents"))
        return program

    compile_model, load = backend.compile, backend.load
    monkeypatch.setattr(backend, "compile", failing)
    monkeypatch.setattr(backend, "load", refusing if when == "run" else load)
    prepared = backend.prepare(rows_model())
    for shape in ((2, 3), (2, 5), (2, 3)):
        x = np.random.default_rng().standard_normal(shape).astype("float32")
        np.testing.assert_allclose(prepared.run([x])[0], softmax(x), rtol=1e-5, atol=1e-7)
    assert [dims for dims in tried if all(isinstance(dim, int) for dim in dims.values())] == [
        {"n": 2, "m": 3},
        {"n": 2, "m": 5},
    ]
    assert len(tried) == 3  # a range is tried once


def test_programs_outlive_the_process_in_a_cache(tmp_path, monkeypatch):
    """A second prepared model takes what the first one compiled, from the folder that is named."""
    monkeypatch.setenv("TVM_FUSION_CACHE", str(tmp_path))
    x = np.random.default_rng().standard_normal((2, 30)).astype("float32")
    first = backend.prepare(rows_model()).run([x])[0]
    monkeypatch.setattr("tvm_fusion.compiler._compile", None)  # nothing is compiled any more
    second = backend.prepare(rows_model())
    np.testing.assert_array_equal(second.run([x])[0], first)
    np.testing.assert_allclose(second.run([x[:, :11]])[0], softmax(x[:, :11]), rtol=1e-5, atol=1e-7)


def test_lists_as_inputs():
    """Nested lists and numbers become arrays of the model's dtypes; sequences stay lists."""
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[n,2] x, float[n] y) => (float[n,2] z)'
    model = onnx.parser.parse_model(text + "{ w = Abs(y) v = Unsqueeze(w, a) z = Add(x, v) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "a"))
    prepared = backend.prepare(model)
    wanted = np.array([[2, -1], [7, 8]], "float32")
    for inputs in ([[[1, -2], [3, 4]], [-1, 4.0]], {"x": [(1, -2), (3, 4)], "y": (-1, 4)}):
        (result,) = prepared.run(inputs)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, wanted)
    with pytest.raises(UserError, match="input 'x' is not an array"):
        prepared.run([[[1, 2], [3]], [1, 2]])
    values = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    joined = onnx.helper.make_tensor_value_info("j", onnx.TensorProto.FLOAT, None)
    node = onnx.helper.make_node("ConcatFromSequence", ["s"], ["j"], axis=0)
    graph = onnx.helper.make_graph([node], "g", [values], [joined])
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    (result,) = backend.run_model(model, {"s": [[1.0, 2.0], np.array([3.0], "float32")]})
    np.testing.assert_array_equal(result, np.array([1, 2, 3], "float32"))
