"""``out``: kernels write into the caller's memory, and nothing is read after it was written."""

import resource

import numpy as np
import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

import tvm_fusion
from tvm_fusion import DimRange
from tvm_fusion.deploy.runtime import function
from tvm_fusion.errors import UserError


def load(folder, nodes, inputs, outputs, weights=None, **options):
    model = onnx_model(nodes, inputs, outputs, weights)
    return tvm_fusion.load(tvm_fusion.compile(model, **options).export(folder / "model"))


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Results of all kinds: a kernel's, a view of one, an input, one of two names, a constant."""
    nodes = [
        ("Transpose", ["x"], ["turned"], {"perm": [1, 0]}),
        ("MatMul", ["turned", "x"], ["gram"]),
        ("Flatten", ["gram"], ["flat"], {"axis": 0}),
        ("Identity", ["x"], ["same"]),
        ("Identity", ["gram"], ["again"]),
        ("Exp", ["gram"], ["power"]),
    ]
    gram = ["k", "k"]
    outputs = [
        ("turned", T.FLOAT, ["k", "n"]), ("flat", T.FLOAT, [1, "k * k"]), ("same", T.FLOAT, "nk"),
        ("again", T.FLOAT, gram), ("power", T.FLOAT, gram), ("table", T.FLOAT, [300]),
    ]  # fmt: skip
    table = {"table": np.arange(300, dtype="float32")}
    dims = {"n": DimRange(1, 40), "k": DimRange(1, 40)}
    folder = tmp_path_factory.mktemp("several")
    return load(folder, nodes, [("x", T.FLOAT, ["n", "k"])], outputs, table, dims=dims)


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    shape = [5, 301]
    values = [(name, T.FLOAT, shape) for name in "xyst"]
    nodes = [("Add", ["x", "y"], ["s"]), ("Transpose", ["s"], ["u"], {"perm": [1, 0]})]
    nodes += [("MatMul", ["u", "x"], ["v"]), ("MatMul", ["x", "v"], ["t"])]
    return load(tmp_path_factory.mktemp("added"), nodes, values[:2], values[2:])


def draw(*shape, scale=0.1):
    return (scale * np.random.default_rng().standard_normal(shape)).astype("float32")


def never(*_):
    raise AssertionError("a result was copied")


@pytest.mark.slow
def test_results_are_written_in_place(added, monkeypatch):
    x, y = draw(5, 301), draw(5, 301)
    expected = added(x=x, y=y)
    monkeypatch.setattr(function, "write_into", never)
    out = {name: np.empty((5, 301), "float32") for name in "st"}
    outputs = added(x=x, y=y, out=out)
    for name in "st":
        assert outputs[name] is out[name]
        np.testing.assert_array_equal(out[name], expected[name])
    one = {"t": np.empty((5, 301), "float32")}
    outputs = added(x=x, y=y, out=one)
    assert outputs["t"] is one["t"]
    assert list(outputs) == ["s", "t"]
    np.testing.assert_array_equal(outputs["s"], expected["s"])


@pytest.mark.slow
def test_every_kind_of_result_is_right(several):
    for n, k in [(3, 4), (17, 5), (40, 40), (1, 1)]:
        x = draw(n, k)
        expected = several(x=x)
        np.testing.assert_allclose(expected["again"], x.T @ x, rtol=1e-4, atol=1e-5)
        out = {name: np.full_like(value, np.nan) for name, value in expected.items()}
        outputs = several(x=x, out=out)
        for name, value in expected.items():
            assert outputs[name] is out[name]
            np.testing.assert_array_equal(out[name], value, err_msg=name)
        part = {"power": np.empty((k, k), "float32")}
        outputs = several(x=x, out=part)
        assert list(outputs) == list(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(outputs[name], value, err_msg=name)
        outputs["again"][...] = 7  # nobody else's memory
        np.testing.assert_array_equal(several(x=x)["flat"], expected["flat"])


@pytest.mark.parametrize("result", "st")
@pytest.mark.parametrize("name", "xy")
def test_an_input_may_be_overwritten(added, name, result):
    inputs = {"x": draw(5, 301), "y": draw(5, 301)}
    expected = added(**inputs)
    found = added(**inputs, out={result: inputs[name]})
    assert found[result] is inputs[name]
    for other in "st":
        np.testing.assert_array_equal(found[other], expected[other])


def test_arrays_that_overlap(added):
    room = draw(11, 301)
    x, y = room[:5], room[5:10]
    expected = added(x=x.copy(), y=y.copy())
    found = added(x=x, y=y, out={"t": room[1:6]})  # both inputs' memory, shifted
    np.testing.assert_array_equal(found["t"], expected["t"])
    np.testing.assert_array_equal(found["s"], expected["s"])
    x, y = draw(5, 301), draw(5, 301)
    expected = added(x=x, y=y)
    found = added(x=x, y=y, out={"s": room[:5], "t": room[2:7]})
    np.testing.assert_array_equal(room[2:7], expected["t"])  # the last that was written
    np.testing.assert_array_equal(room[:2], expected["s"][:2])


def test_weights_and_bound_inputs_are_read_before_they_are_written(tmp_path):
    weight = draw(40, 40)
    nodes = [("MatMul", ["x", "w"], ["p"]), ("MatMul", ["p", "w"], ["q"])]
    square = [("x", T.FLOAT, [40, 40])], [("q", T.FLOAT, [40, 40])]
    model = load(tmp_path, nodes, *square, {"w": weight})
    own = weight.copy()
    x = draw(40, 40)
    expected = model(x=x)["q"]
    again = tvm_fusion.load(tmp_path / "model", weights={"w": own})
    np.testing.assert_array_equal(again(x=x)["q"], expected)
    np.testing.assert_array_equal(again(x=x, out={"q": own})["q"], expected)
    bound = model.bind({"x": x})
    np.testing.assert_array_equal(bound(out={"q": x})["q"], expected)


@pytest.mark.parametrize(
    "array", [np.zeros((5, 300), "float32"), np.zeros((5, 301), "float64"), np.zeros(1505, "f4")]
)
def test_nothing_is_written_unless_all_fits(added, array):
    fitting = np.zeros((5, 301), "float32")
    with pytest.raises(UserError, match="the array for output 't' has"):
        added(x=draw(5, 301), y=draw(5, 301), out={"s": fitting, "t": array})
    assert not fitting.any()


def test_strided_and_read_only_arrays(added):
    x, y = draw(5, 301), draw(5, 301)
    expected = added(x=x, y=y)
    wide = np.zeros((5, 602), "float32")
    added(x=x, y=y, out={"s": wide[:, ::2]})
    np.testing.assert_array_equal(wide[:, ::2], expected["s"])
    assert not wide[:, 1::2].any()
    wide.flags.writeable = False
    with pytest.raises(UserError, match="read-only"):
        added(x=x, y=y, out={"s": wide[:, :301]})


def test_memory_of_results_is_used_again_but_not_while_somebody_has_it(added):
    kept = []
    for number in range(40):
        x, y = draw(5, 301), draw(5, 301)
        outputs = added(x=x, y=y)
        if number % 3 == 0:
            kept.append((outputs["s"], x + y, outputs["t"][1:], outputs["t"][1:].copy()))
        if number % 7 == 0 and kept:
            kept.pop(0)
    for found, expected, part, copy in kept:
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(part, copy)


def test_results_are_not_paged_in_at_every_call(tmp_path):
    values = [(name, T.FLOAT, [1 << 22]) for name in "xy"]
    model = load(tmp_path, [("Relu", ["x"], ["y"])], values[:1], values[1:])
    x = np.ones(1 << 22, "float32")
    model(x=x)

    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    before = faults()
    for _ in range(10):
        model(x=x)
    assert faults() - before < 3 * 4096  # of 10 times 4096 pages


def test_extents_that_elements_tell_are_no_destinations(tmp_path):
    """A product of such extents: shapes of parameters are checked before any is known."""
    nodes = [("Reshape", ["x", "s"], ["r"]), ("Flatten", ["r"], ["y"])]
    inputs = [("x", T.FLOAT, [6, 4, 4]), ("s", T.INT64, [4])]
    run = load(tmp_path, nodes, inputs, [("y", T.FLOAT, ["p", "q"])])
    x = draw(6, 4, 4)
    for shape in ([2, 3, 4, 4], [96, 1, 1, 1]):
        found = run(x=x, s=np.asarray(shape, "int64"))["y"]
        np.testing.assert_array_equal(found, x.reshape(shape[0], -1))
    out = {"y": np.empty((2, 48), "float32")}
    run(x=x, s=np.asarray([2, 3, 4, 4], "int64"), out=out)
    np.testing.assert_array_equal(out["y"], x.reshape(2, 48))
