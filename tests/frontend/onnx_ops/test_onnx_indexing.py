import numpy as np
import pytest
from onnx import helper

from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.signature import DimRange


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("constants", [[], ["n"]])
def test_reverse_sequence(agrees, rng, time, batch, constants):
    x = rng.standard_normal((5, 4, 3) if time == 0 else (4, 5, 3), "float32")
    inputs = {"x": x, "n": np.array([5, 0, 1, 3])}
    attrs = {"time_axis": time, "batch_axis": batch}
    agrees("ReverseSequence", inputs, {"y": "float32"}, constants=constants, **attrs)


@pytest.mark.parametrize(
    ("reverse", "exclusive", "axis"), [(0, 0, 0), (1, 0, -1), (0, 1, -1), (1, 1, 0)]
)
def test_cumulative_product(agrees, rng, reverse, exclusive, axis):
    x = rng.standard_normal((3, 5), "float32")
    seen = np.flip(x, axis) if reverse else x
    expected = np.cumprod(seen, axis)
    if exclusive:
        expected = np.roll(expected, 1, axis)
        expected[(slice(0, 1), slice(None))[:: 1 if axis == 0 else -1]] = 1
    expected = np.flip(expected, axis) if reverse else expected
    inputs = {"x": x, "a": np.array(axis)}
    attrs = {"reverse": reverse, "exclusive": exclusive, "opset": 26}
    agrees("CumProd", inputs, {"y": "float32"}, constants=["a"], expected=[expected], **attrs)


def test_extents_are_gathered_and_joined_with_computed_numbers(onnx_model, run, rng):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["extents"], axis=0),
        helper.make_node("Concat", ["rest", "extents"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
        helper.make_node("Concat", ["n", "extents"], ["z"], axis=0),
    ]
    weights = {"last": np.array([-1, 0]), "rest": np.array([-1])}
    model = onnx_model(
        nodes,
        {"x": ("float32", ["a", 4, "b"]), "n": ("int64", [2])},
        {"y": ("float32", ["k", "b", "a"]), "z": ("int64", [4])},
        weights,
    )
    x, n = rng.standard_normal((3, 4, 5), "float32"), np.array([7, 8])
    dims = {name: DimRange(1, 8) for name in "ab"}
    y, z = run(import_model(model, FusionConfig(dims=dims)).mod, x, n)
    np.testing.assert_array_equal(y, x.reshape(-1, 5, 3))
    np.testing.assert_array_equal(z, [7, 8, 5, 3])


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize(
    ("starts", "ends", "steps"),
    [([5], [2], [1]), ([-1, 1], [-3, 9], [1, 1]), ([-1, 0], [3, 9], [2, 2]), ([1], [5], [-2])],
)
def test_slices_without_elements(agrees, rng, starts, ends, steps, opset):
    x = rng.standard_normal((7, 5)).astype("float32")
    expected = x[tuple(map(slice, starts, ends, steps))]
    if opset == 18:
        numbers = {"s": starts, "e": ends, "a": range(len(steps)), "t": steps}
        given = {"x": x} | {name: np.array([*each]) for name, each in numbers.items()}
        agrees("Slice", given, {"y": "float32"}, constants=numbers, expected=[expected])
    elif set(steps) == {1}:
        bounds = {"starts": starts, "ends": ends}
        agrees("Slice", {"x": x}, {"y": "float32"}, opset=9, expected=[expected], **bounds)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_padding_with_a_computed_value(agrees, rng, mode):
    x, widths = rng.standard_normal((3, 5)).astype("float32"), np.array([1, 0, -1, 2])
    given = {"x": x, "p": widths, "v": np.array(3.5, "float32")}
    agrees("Pad", given, {"y": "float32"}, constants=["p"], mode=mode)


def test_as_many_lengths_as_sequences(refuses):
    given = {"x": ("float32", [3, 5]), "n": ("int64", [3])}
    sentence = refuses("ReverseSequence", given, {"y": ("float32", None)})
    assert "ReverseSequence joins extents 3 and 5" in sentence
