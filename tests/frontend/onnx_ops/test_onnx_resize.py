import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_fusion
from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.signature import DimRange

pytestmark = pytest.mark.slow_beyond(4)

F32 = "float32"


def f32(*values):
    return np.array(values, F32)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("scales", [(1, 1, 0.6, 0.7), (1, 1, 1.7, 2.3), (1, 1, 2, 3)])
def test_scales(agrees, rng, mode, coordinates, scales):
    x = rng.standard_normal((1, 2, 7, 5), dtype=F32)
    inputs = {"x": x, "_roi": None, "s": f32(*scales)}
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    agrees("Resize", inputs, {"y": F32}, constants=["s"], atol=1e-5, **attrs)


def test_corners_are_those_of_the_scaled_extent(agrees):
    """ONNX's own case has them at scale times extent; ONNX Runtime at the extent rounded down."""
    x = np.arange(4, dtype=F32).reshape(1, 1, 1, 4)
    inputs = {"x": x, "_roi": None, "s": f32(1, 1, 1, 0.6)}
    expected = np.array([0, 3 / 1.4], F32).reshape(1, 1, 1, 2)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    agrees("Resize", inputs, {"y": F32}, constants=["s"], expected=[expected], **attrs)


@pytest.mark.parametrize("rounding", ["round_prefer_ceil", "floor", "ceil"])
def test_rounding_of_nearest(agrees, rng, rounding):
    x = rng.standard_normal((1, 1, 6, 5), dtype=F32)
    inputs = {"x": x, "_roi": None, "s": f32(1, 1, 1.5, 0.5)}
    agrees("Resize", inputs, {"y": F32}, constants=["s"], mode="nearest", nearest_mode=rounding)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("size", [(3, 4), (11, 5)])
def test_antialias(agrees, rng, mode, size):
    x = rng.standard_normal((1, 2, 7, 9), dtype=F32)
    inputs = {"x": x, "_roi": None, "_scales": None, "z": np.array([1, 2, *size])}
    agrees("Resize", inputs, {"y": F32}, constants=["z"], mode=mode, antialias=1, atol=1e-5)


def test_exclude_outside(agrees, rng):
    x = rng.standard_normal((1, 1, 4, 5), dtype=F32)
    inputs = {"x": x, "_roi": None, "s": f32(1, 1, 2, 2)}
    attrs = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    agrees("Resize", inputs, {"y": F32}, constants=["s"], atol=1e-5, **attrs)


def test_regions(agrees, rng):
    x = rng.standard_normal((1, 1, 5, 6), dtype=F32)
    inputs = {
        "x": x,
        "r": f32(0, 0, 0.2, -0.1, 1, 1, 0.9, 0.8),
        "_scales": None,
        "z": np.array([1, 1, 4, 3]),
    }
    attrs = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    agrees("Resize", inputs, {"y": F32}, constants=["r", "z"], mode="linear", **attrs)


def test_axes_and_aspect_ratio(agrees, rng):
    x = rng.standard_normal((1, 1, 5, 6), dtype=F32)
    inputs = {"x": x, "_roi": None, "_scales": None, "z": np.array([4, 9])}
    attrs = {"axes": [3, 2], "keep_aspect_ratio_policy": "not_larger"}
    agrees("Resize", inputs, {"y": F32}, constants=["z"], mode="linear", atol=1e-5, **attrs)


def test_upsample_of_fractions(agrees, rng):
    x = rng.standard_normal((1, 2, 4, 3), dtype=F32)
    inputs = {"x": x, "s": f32(1, 1, 1.5, 2)}
    agrees("Upsample", inputs, {"y": F32}, constants=["s"], opset=9, mode="nearest")


def test_common_resizes_stay_one_operator(onnx_model, operators):
    from onnx import helper

    from tvm_fusion.frontend import import_model

    model = onnx_model(
        [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")],
        {"x": (F32, [1, 3, 8, 8])},
        {"y": (F32, [1, 3, 16, 16])},
        {"s": f32(1, 1, 2, 2)},
    )
    assert operators(import_model(model).mod["main"]) == ["image.resize2d"]


@pytest.mark.parametrize("given", ["scales", "sizes"])
def test_inputs_of_the_model(onnx_model, run, onnxruntime_run, given):
    """Images and channels stay as many; the product reads them."""
    inputs = ["x", "", "s"] if given == "scales" else ["x", "", "", "s"]
    nodes = [
        helper.make_node("Resize", inputs, ["up"], mode="linear"),
        helper.make_node("Conv", ["up", "k"], ["y"]),
    ]
    dtype = F32 if given == "scales" else "int64"
    shapes = {"x": (F32, [1, 2, 4, "w"]), "s": (dtype, [4])}
    k = {"k": np.random.default_rng().standard_normal((3, 2, 1, 1), dtype=F32)}
    model = onnx_model(nodes, shapes, {"y": (F32, None)}, k)
    mod = import_model(model, FusionConfig(dims={"w": DimRange(1, 8)})).mod
    for w, new in ((5, (1, 1, 2, 1.5)), (8, (1, 1, 0.5, 3))):
        x = np.random.default_rng().standard_normal((1, 2, 4, w), dtype=F32)
        s = f32(*new) if given == "scales" else np.multiply(new, x.shape).astype("int64")
        (wanted,) = onnxruntime_run(model, x=x, s=s)
        np.testing.assert_allclose(run(mod, x, s), wanted, rtol=1e-4, atol=1e-5)


BY_SCALE = {"coordinate_transformation_mode": "asymmetric"}


@pytest.mark.parametrize(
    ("have", "want", "attrs"),
    [
        (14, 19, {}),  # 6.5000005, which is a half
        (6, 14, {**BY_SCALE, "nearest_mode": "floor"}),
        (
            7,
            2,
            {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "round_prefer_ceil"},
        ),
    ],
)
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_nearest_as_float32_rounds(
    onnx_model, run, onnxruntime_run, have, want, attrs, is_symbolic
):
    """In exact arithmetic some elements are those beside ONNX Runtime's."""
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="nearest", **attrs)
    model = onnx_model([node], {"x": (F32, ["n"])}, {"y": (F32, None)}, {"s": np.array([want])})
    dims = {"n": DimRange(1, 32) if is_symbolic else have}
    x = np.arange(have, dtype=F32)
    found = run(import_model(model, FusionConfig(dims=dims)).mod, x)
    np.testing.assert_array_equal(found, onnxruntime_run(model, x=x)[0])


def test_an_extent_that_float32_rounds_up(agrees):
    """0.7 of 20 is 14 in float32, and 13 by ONNX's inference."""
    inputs = {"x": np.arange(20, dtype=F32), "_roi": None, "s": f32(0.7)}
    (y,) = agrees("Resize", inputs, {"y": F32}, constants=["s"], mode="nearest")
    assert y.shape == (14,)


def test_to_the_symbolic_extents_of_another_level(onnx_model, rng, tmp_path):
    nodes = [
        helper.make_node("Shape", ["low"], ["low_shape"], end=2),
        helper.make_node("Shape", ["high"], ["high_shape"], start=2),
        helper.make_node("Cast", ["high_shape"], ["extents"], to=TensorProto.INT64),
        helper.make_node("Concat", ["low_shape", "extents"], ["sizes"], axis=0),
        helper.make_node(
            "Resize",
            ["low", "", "", "sizes"],
            ["up"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        helper.make_node("Add", ["up", "high"], ["y"]),
    ]
    shapes = {"low": (F32, [1, 2, "a", "b"]), "high": (F32, [1, 2, "h", "w"])}
    model = onnx_model(nodes, shapes, {"y": (F32, [1, 2, "h", "w"])})
    dims = {name: DimRange(1, 64) for name in "abhw"}
    artifact = tvm_fusion.compile(model, dims=dims)
    executable = tvm_fusion.load(artifact.export(tmp_path / "artifact"))
    for a, b, h, w in ((5, 6, 9, 13), (10, 3, 4, 3)):
        low, high = (rng.standard_normal((1, 2, *e), dtype=F32) for e in ((a, b), (h, w)))
        rows, columns = np.arange(h) * a // h, np.arange(w) * b // w
        (y,) = executable.run({"low": low, "high": high}).values()
        np.testing.assert_array_equal(y, low[:, :, rows][:, :, :, columns] + high)
