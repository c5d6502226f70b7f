"""Export, load and call: names, order, dtypes, memory."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto as T
from tiny_models import dense_data, dense_expected, dense_weights, onnx_model

import tvm_fusion
from tvm_fusion.errors import UserError

BF16 = ml_dtypes.bfloat16
INPUTS = {
    "x:0": np.array([-1.5, 0, 2, 3, 4], "float32"),
    "half": np.arange(5, dtype="float16"),
    "brain": np.arange(5).astype(BF16),
    "count": np.arange(5, dtype="int64") * 2**40,
    "small": np.arange(5, dtype="int32"),
    "flag": np.array([True, False, True, True, False]),
    "scale": np.array(3.0, "float32"),
    "unused": np.zeros((2, 2), "float32"),
}
EXPECTED = {
    "scaled/y.1": np.array([-4.5, 0, 6, 9, 12], "float32"),
    "out": np.arange(5, dtype="float16") ** 2,
    "brain2": (np.arange(5) ** 2).astype(BF16),
    "twice": np.arange(5, dtype="int64") * 2**41,
    "less": np.array([False, False, True, True, True]),
    "inverted": ~INPUTS["flag"],
    "tripled": np.array(9.0, "float32"),
    "copy": INPUTS["x:0"],
    "table": np.arange(5, dtype="float32"),
    "large": np.arange(500, dtype="float32"),
    "again": np.array([-4.5, 0, 6, 9, 12], "float32"),
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    kinds = {
        "float32": T.FLOAT, "float16": T.FLOAT16, "bfloat16": T.BFLOAT16, "int64": T.INT64,
        "int32": T.INT32, "bool": T.BOOL,
    }  # fmt: skip

    def declare(arrays):
        return [(n, kinds[str(a.dtype)], list(a.shape)) for n, a in arrays.items()]

    model = onnx_model(
        [
            ("Mul", ["x:0", "scale"], ["scaled/y.1"]),
            ("Mul", ["half", "half"], ["out"]),
            ("Mul", ["brain", "brain"], ["brain2"]),
            ("Add", ["count", "count"], ["twice"]),
            ("Less", ["one", "small"], ["less"]),
            ("Not", ["flag"], ["inverted"]),
            ("Mul", ["scale", "scale"], ["tripled"]),
            ("Identity", ["x:0"], ["copy"]),
            ("Identity", ["scaled/y.1"], ["again"]),
        ],
        declare(INPUTS),
        declare(EXPECTED),
        {k: EXPECTED[k] for k in ("table", "large")} | {"one": np.ones(5, "int32")},
    )
    folder = tmp_path_factory.mktemp("mixed") / "a folder [ü]"
    return tvm_fusion.load(tvm_fusion.compile(model).export(str(folder)))


def test_outputs_have_the_models_names_order_dtypes_and_values(mixed):
    outputs = mixed.run(INPUTS)
    assert list(outputs) == list(EXPECTED)
    for name, expected in EXPECTED.items():
        assert outputs[name].dtype == expected.dtype
        assert outputs[name].shape == expected.shape
        np.testing.assert_array_equal(outputs[name], expected, err_msg=name)


def test_writing_to_results_changes_nothing_else(mixed):
    given = {name: array.copy() for name, array in INPUTS.items()}
    outputs = mixed.run(given)
    for array in outputs.values():
        array[...] = 1 - array if array.dtype != bool else ~array
    np.testing.assert_array_equal(outputs["again"], 1 - EXPECTED["again"])
    for name, array in given.items():
        np.testing.assert_array_equal(array, INPUTS[name], err_msg=name)
    for name, array in mixed.run(INPUTS).items():
        np.testing.assert_array_equal(array, EXPECTED[name], err_msg=name)


def test_results_outlive_later_calls_and_the_executable(dense_folder):
    executable = tvm_fusion.load(dense_folder)
    first = executable(data=dense_data(3))["scores"]
    kept = first.copy()
    for seed in range(4):
        executable(data=dense_data(3, seed=10 + seed))
    del executable
    np.testing.assert_array_equal(first, kept)


def test_pythons_numbers_are_taken(mixed):
    inputs = {**INPUTS, "scale": 3, "x:0": [-1.5, 0, 2, 3, 4], "flag": INPUTS["flag"].tolist()}
    outputs = mixed.run(inputs)
    np.testing.assert_array_equal(outputs["again"], EXPECTED["again"])
    np.testing.assert_array_equal(outputs["inverted"], EXPECTED["inverted"])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("half", np.zeros(5), "input 'half' has dtype float64; expected float16; cast it to"),
        ("half", np.zeros(5, "complex64"), "float16 with real and imaginary parts along the last"),
        ("brain", np.zeros(5, "float16"), "input 'brain' has dtype float16; expected bfloat16"),
        ("x:0", np.zeros(5, ">f4"), "input 'x:0' has dtype >f4; expected float32"),
        ("x:0", np.zeros(4, "float32"), r"input 'x:0' has shape \(4,\); expected \(5,\)"),
        ("x:0", None, "input 'x:0' has dtype object; expected float32"),
        ("x:0", "text", "input 'x:0' has dtype <U4; expected float32"),
        ("scale", np.zeros(1, "float32"), r"input 'scale' has shape \(1,\); expected \(\)"),
        ("count", 1.5, "input 'count' has dtype float64; expected int64"),
        ("y", 1, "unknown input 'y'; expected the inputs 'x:0', 'half'"),
    ],
)
def test_a_wrong_input_is_one_sentence(mixed, name, value, words):
    with pytest.raises(UserError, match=words) as caught:
        mixed.run({**INPUTS, name: value})
    assert "\n" not in str(caught.value)


def test_an_unknown_function_is_named(mixed):
    with pytest.raises(UserError, match="no function 'decode'; expected one of 'main'"):
        mixed.run(INPUTS, function="decode")


class Producer:
    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.fixture(scope="module")
def dense(dense_folder):
    return tvm_fusion.load(dense_folder)


def assert_dense(actual, data):
    expected = dense_expected(data, **dense_weights())
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("wrap", [np.asarray, Producer])
def test_results_are_written_into_the_callers_arrays(dense, wrap):
    data = dense_data(5)
    memory = np.full((5, 2, 32), np.nan, "float32")
    target = wrap(memory[:, 1])
    outputs = dense(data=wrap(data), out={"scores": target})
    assert outputs["scores"] is target
    assert_dense(memory[:, 1], data)
    assert np.isnan(memory[:, 0]).all()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ({"scores": np.zeros((4, 32), "float32")}, r"has shape \(4, 32\) and dtype float32; exp"),
        ({"scores": np.zeros((5, 32))}, r"dtype float64; expected shape \(5, 32\) and dtype flo"),
        ({"score": np.zeros((5, 32))}, "unknown output 'score'; expected one of 'scores'"),
        ({"scores": [0.0]}, "the array for output 'scores' is a list"),
        (np.zeros((5, 32)), "out is a ndarray; expected arrays by output name"),
        ({"scores": np.broadcast_to(np.float32(0), (5, 32))}, "output 'scores' is read-only"),
    ],
)
def test_wrong_arrays_for_results_are_named(dense, out, words):
    with pytest.raises(UserError, match=words):
        dense(data=dense_data(5), out=out)


def test_no_result_is_written_unless_all_arrays_fit(mixed):
    fitting = np.full((), 7, "float32")
    with pytest.raises(UserError, match="the array for output 'less'"):
        mixed.run(INPUTS, out={"tripled": fitting, "less": np.zeros(9)})
    assert fitting == 7


def test_an_input_may_be_called_self_or_out(tmp_path):
    model = onnx_model(
        [("Add", ["self", "out"], ["sum"])],
        [("self", T.FLOAT, [2]), ("out", T.FLOAT, [2])],
        [("sum", T.FLOAT, [2])],
    )
    executable = tvm_fusion.load(tvm_fusion.compile(model).export(tmp_path / "a"))
    one = np.ones(2, "float32")
    np.testing.assert_array_equal(executable.run({"self": one, "out": one})["sum"], 2 * one)
    with pytest.raises(UserError, match=r"pass an input that is called 'out' through run\(\)"):
        executable(self=one, out=one)


def test_inputs_in_order(dense_artifact):
    executable = tvm_fusion.load(dense_artifact)
    data = dense_data(2)
    (expected,), (found,) = (run.values() for run in (executable(data=data), executable(data)))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(tvm_fusion.UserError, match=r"^2 inputs in order; expected the inputs 'da"):
        executable(data, data)
    with pytest.raises(tvm_fusion.UserError, match=r"^input 'data' is given twice; expected each"):
        executable(data, data=data)
    with pytest.raises(tvm_fusion.UserError, match=r"^an artifact of type dict; expected an arti"):
        tvm_fusion.load({})


def test_objects_introduce_themselves_in_a_line(dense_artifact, dense_folder):
    assert repr(dense_artifact).startswith("<Artifact of ModelProto for cpu:")
    assert repr(tvm_fusion.load(dense_folder)).startswith("<Executable of ModelProto for cpu:")
