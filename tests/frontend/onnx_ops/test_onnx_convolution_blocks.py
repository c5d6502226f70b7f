import numpy as np
import pytest

F32 = "float32"


@pytest.mark.parametrize(
    ("attrs", "bias"),
    [
        ({"strides": [3, 2], "output_shape": [10, 8]}, True),
        ({"strides": [2, 2], "output_shape": [6, 7]}, False),
        ({"strides": [2, 2], "output_shape": [6, 7], "auto_pad": "SAME_UPPER"}, False),
        ({"strides": [2, 3], "auto_pad": "SAME_UPPER"}, True),
    ],
)
def test_transposed_convolution_of_a_given_shape(agrees, rng, attrs, bias):
    x = rng.standard_normal((2, 4, 3, 3), dtype=F32)
    w = rng.standard_normal((4, 3, 3, 3), dtype=F32)
    inputs = {"x": x, "w": w} | ({"b": rng.standard_normal(3, dtype=F32)} if bias else {})
    agrees("ConvTranspose", inputs, {"y": F32}, constants=["w"], atol=1e-5, opset=22, **attrs)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(agrees, rng, mode):
    x = rng.standard_normal((2, 12, 3, 5), dtype=F32)
    agrees("DepthToSpace", {"x": x}, {"y": F32}, opset=13, blocksize=2, mode=mode)


def test_space_to_depth_undoes_depth_to_space(agrees, rng):
    x = rng.standard_normal((2, 12, 3, 5), dtype=F32)
    for mode in ("DCR", "CRD"):
        (y,) = agrees("DepthToSpace", {"x": x}, {"y": F32}, opset=13, blocksize=2, mode=mode)
        agrees("SpaceToDepth", {"y": y}, {"x": F32}, opset=28, expected=[x], blocksize=2, mode=mode)


@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("mode", "scale"), [("max", 1.0), ("max", 0.7), ("avg", 0.7)])
def test_regions_of_interest(agrees, rng, coordinates, mode, scale):
    x = rng.standard_normal((2, 3, 7, 6), dtype=F32)
    rois = np.array([[0, 0, 3.3, 3.1], [1, 2, 5, 6.5], [0.5, 0, 4, 4]], F32)
    inputs = {"x": x, "r": rois, "b": np.array([0, 1, 0])}
    attrs = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": scale}
    attrs |= {"coordinate_transformation_mode": coordinates, "mode": mode}
    agrees("RoiAlign", inputs, {"y": F32}, atol=1e-5, **attrs)


@pytest.mark.parametrize(("axis", "depth"), [(-1, 4), (0, 3), (1, 5)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_one_hot_in_the_type_of_its_values(agrees, axis, depth, dtype):
    indices = np.array([[0, -1, 2], [1, 7, -2]])
    inputs = {"i": indices, "d": np.array([depth]), "v": np.array([2, 5], dtype)}
    agrees("OneHot", inputs, {"y": dtype}, constants=["d"], axis=axis)
