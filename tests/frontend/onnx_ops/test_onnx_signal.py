"""DFT, STFT and MelWeightMatrix against numpy in float64."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tvm_fusion.frontend.onnx_model.types import infer_types
from tvm_fusion.frontend.onnx_ops.math.fourier import dft_matrix

F32 = "float32"


def as_pairs(x):
    return np.stack([x.real, x.imag], -1).astype(F32)


@pytest.mark.slow_beyond(11)
@pytest.mark.parametrize(("axis", "length"), [(1, None), (-2, 5), (0, 9)])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft(agrees, rng, axis, length, inverse, parts):
    x = rng.standard_normal((7, 6, 3, parts))
    z = x[..., 0] + 1j * (x[..., 1] if parts == 2 else 0)
    function = np.fft.ifft if inverse else np.fft.fft
    wanted = as_pairs(function(z, n=length, axis=axis if axis >= 0 else axis + 1))
    inputs = {"x": x.astype(F32), "n" if length else "_n": np.array(length or 0)}
    inputs["o"] = np.array(axis)
    attrs = {"opset": 20, "inverse": inverse, "expected": [wanted], "atol": 1e-5}
    constants = ["n", "o"] if length else ["o"]
    agrees("DFT", inputs, {"y": F32}, constants=constants, **attrs)


@pytest.mark.parametrize("length", [8, 9])
def test_half_of_the_frequencies_and_back(agrees, rng, length):
    x = rng.standard_normal((3, length)).astype(F32)
    half = as_pairs(np.fft.rfft(x.astype("float64")))
    attrs = {"opset": 17, "axis": 1, "onesided": 1, "atol": 1e-5}
    agrees("DFT", {"x": x[..., None]}, {"y": F32}, expected=[half], **attrs)
    inputs = {"x": half, "n": np.array(length)}
    attrs = {"opset": 20, "onesided": 1, "inverse": 1, "atol": 1e-5}
    wanted = [x[..., None]]
    agrees("DFT", inputs, {"y": F32}, constants=["n"], expected=wanted, **attrs)


@pytest.mark.parametrize(("window", "onesided"), [(True, 1), (False, 0)])
def test_stft(agrees, rng, window, onesided):
    x, w = rng.standard_normal((2, 37)), rng.uniform(0.5, 1, 8)
    frames = np.stack([x[:, i : i + 8] for i in range(0, 30, 3)], 1) * (w if window else 1)
    wanted = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    inputs = {"x": x[..., None].astype(F32), "s": np.array(3), "w" if window else "_w": w}
    inputs = {**inputs, "n": np.array(8)}
    inputs = {n: a.astype(F32) if n == "w" else a for n, a in inputs.items()}
    attrs = {"opset": 17, "expected": [as_pairs(wanted)], "atol": 1e-5}
    if not onesided:
        attrs["onesided"] = 0
    agrees("STFT", inputs, {"y": F32}, constants=["s", "n"], **attrs)


def test_the_matrix_is_exact_where_angles_are():
    matrix = dft_matrix(4, 1, 4)
    assert matrix[1, 0, 2].round(12).tolist() == [-1, 0]
    large = dft_matrix(1000, 1, 1000)  # 999 * 999 turns of a thousandth are one turn
    np.testing.assert_allclose(large[999, 0, 999], large[1, 0, 1], atol=1e-15)


def test_bad_transforms(refuses):
    x = {"x": (F32, [1, 5000, 1])}
    assert "of 5000 points, whose matrix has 50000000 elements" in refuses(
        "DFT", x, {"y": (F32, None)}, opset=17
    )
    x = {"x": (F32, [1, 8, 2])}
    sentence = refuses("DFT", x, {"y": (F32, None)}, opset=17, onesided=1)
    assert "with onesided on a complex input; leave onesided out" in sentence
    weights = {"s": np.array(2), "w": np.ones(3, F32), "n": np.array(4)}
    sentence = refuses("STFT", {"x": (F32, [1, 8, 1])}, {"y": (F32, None)}, weights, opset=17)
    assert "with a window of [3] for frames of 4; give both the same length" in sentence


def test_mel_weights(agrees):
    values = {"n": 6, "d": 16, "r": 8000, "l": 0.0, "u": 4000.0}
    inputs = {n: np.array(v, F32 if isinstance(v, float) else "int64") for n, v in values.items()}
    node = helper.make_node("MelWeightMatrix", list(inputs), ["y"])
    graph = helper.make_graph(
        [node],
        "mel",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), [])
            for n, a in inputs.items()
        ],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    wanted = ReferenceEvaluator(model).run(None, inputs)
    assert wanted[0].any()
    agrees("MelWeightMatrix", inputs, {"y": F32}, constants=[*inputs], opset=17, expected=wanted)


def test_onnx_takes_stft_without_the_attribute_for_two_sided(onnx_model):
    """The bug for which inference is given the attribute; without it ours would be needless."""
    import onnx

    node = helper.make_node("STFT", ["x", "s", "", "n"], ["y"])
    weights = {"s": np.array(3), "n": np.array(8)}
    model = onnx_model([node], {"x": (F32, [2, 37, 1])}, {"y": (F32, None)}, weights)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output[0]
    assert inferred.type.tensor_type.shape.dim[2].dim_value == 8
    assert infer_types(model, {})["y"].shape == (2, 10, 5, 2)
