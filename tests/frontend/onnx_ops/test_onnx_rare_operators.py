"""Operators of few models: Det, Col2Im, DeformConv, BitCast, TensorScatter, MaxUnpool, TopK."""

import numpy as np
import pytest
from onnx import TensorProto

pytestmark = pytest.mark.slow_beyond(2)

F32 = "float32"


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("shape", [(3, 3), (2, 1, 5, 5), (4, 1, 1)])
def test_determinants(agrees, rng, shape):
    x = rng.standard_normal(shape).astype(F32)
    wanted = np.asarray(np.linalg.det(x.astype("float64")), F32)
    agrees("Det", {"x": x}, {"y": F32}, expected=[wanted], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_determinants_with_zeros_on_the_diagonal(agrees):
    x = np.array([[[0, 2, 0], [3, 0, 0], [0, 0, 4]], [[1, 2, 3], [2, 4, 6], [0, 1, 0]]], F32)
    agrees("Det", {"x": x}, {"y": F32}, expected=[np.array([-24, 0], F32)])


def test_determinants_that_are_refused(refuses):
    y = {"y": (F32, None)}
    sentence = refuses("Det", {"x": (F32, [17, 17])}, y)
    assert "of 17 rows" in sentence
    assert "give it at most 16" in sentence


@pytest.mark.parametrize(
    ("image", "block", "attrs"),
    [
        ((6, 7), (3, 2), {}),
        ((7, 5), (2, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((9, 8), (2, 2), {"dilations": [3, 2], "strides": [1, 2]}),
        ((4, 5, 6), (2, 1, 3), {"pads": [0, 1, 0, 0, 0, 1]}),
    ],
)
def test_blocks_to_an_image(agrees, rng, image, block, attrs):
    rank = len(image)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    x = rng.standard_normal((2, 3 * int(np.prod(block)), int(np.prod(counts))))
    wanted = np.zeros((2, 3, *(image[i] + pads[i] + pads[rank + i] for i in range(rank))))
    blocks = x.reshape(2, 3, *block, *counts)
    for tap in np.ndindex(*block):
        for place in np.ndindex(*counts):
            at = [place[i] * strides[i] + tap[i] * dilations[i] for i in range(rank)]
            wanted[(slice(None), slice(None), *at)] += blocks[(..., *tap, *place)]
    cut = tuple(slice(pads[i], pads[i] + image[i]) for i in range(rank))
    wanted = wanted[(slice(None), slice(None), *cut)].astype(F32)
    inputs = {"x": x.astype(F32), "i": np.array(image), "b": np.array(block)}
    agrees("Col2Im", inputs, {"y": F32}, constants=["i", "b"], expected=[wanted], **attrs)


def bilinear(image, y, x):
    """Sample a [h, w] image between its pixels; zeros around it."""
    y0, x0 = int(np.floor(y)), int(np.floor(x))
    total = 0.0
    for i, v in ((y0, y0 + 1 - y), (y0 + 1, y - y0)):
        for j, w in ((x0, x0 + 1 - x), (x0 + 1, x - x0)):
            if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
                total += v * w * image[i, j]
    return total


@pytest.mark.parametrize(
    ("groups", "offset_groups", "has_mask", "strides", "pads"),
    [(1, 1, True, [1, 1], [0, 0, 0, 0]), (2, 2, False, [2, 1], [1, 0, 1, 2])],
)
def test_deformable_convolutions(agrees, rng, groups, offset_groups, has_mask, strides, pads):
    kernel, shape = (2, 3), (2, 4, 6, 5)
    out = [(shape[2 + i] + pads[i] + pads[2 + i] - kernel[i]) // strides[i] + 1 for i in range(2)]
    x, w = rng.standard_normal(shape), rng.standard_normal((6, 4 // groups, *kernel))
    offset = rng.standard_normal((2, offset_groups * 12, *out)) * 2
    mask = rng.uniform(0, 1, (2, offset_groups * 6, *out))
    wanted = np.zeros((2, 6, *out)) + np.arange(6)[:, None, None]
    for n, m, i, j in np.ndindex(wanted.shape):
        for c in range(4 // groups):
            channel = m // (6 // groups) * (4 // groups) + c
            group = channel // (4 // offset_groups)
            for k in range(6):
                at = (group * 6 + k) * 2
                y = i * strides[0] - pads[0] + k // 3 + offset[n, at, i, j]
                z = j * strides[1] - pads[1] + k % 3 + offset[n, at + 1, i, j]
                value = bilinear(x[n, channel], y, z) * w[m, c, k // 3, k % 3]
                wanted[n, m, i, j] += value * (mask[n, group * 6 + k, i, j] if has_mask else 1)
    arrays = {"x": x, "w": w, "o": offset, "b": np.arange(6), "m" if has_mask else "_m": mask}
    inputs = {name: array.astype(F32) for name, array in arrays.items()}
    attrs = {"strides": strides, "pads": pads, "group": groups, "offset_group": offset_groups}
    attrs |= {"opset": 19, "expected": [wanted.astype(F32)], "rtol": 1e-4, "atol": 1e-4}
    agrees("DeformConv", inputs, {"y": F32}, **attrs)


@pytest.mark.parametrize(
    ("dtype", "to"),
    [
        *[("float32", "uint32"), ("int64", "float64"), ("uint16", "float16")],
        *[("int8", "uint8"), ("bool", "int8"), ("float32", "float32"), ("uint16", "bfloat16")],
    ],
)
def test_the_same_bits_as_another_type(agrees, rng, dtype, to):
    import ml_dtypes

    wanted_type = np.dtype(getattr(ml_dtypes, to, to))
    width = np.dtype(dtype).itemsize
    x = rng.integers(0, 256, (3, 5 * width)).astype("uint8")
    x = x.view(dtype) if dtype != "bool" else x > 127
    x[..., 0] = 0 if dtype == "bool" else 1
    wanted = x.view(wanted_type)
    bits = f"uint{8 * width}"
    finite = np.isfinite(wanted.astype("float64")) & np.isfinite(x.astype("float64"))
    x, wanted = np.where(finite, x, x[0, 0]), np.where(finite, wanted, wanted[0, 0])
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    number = int(TensorProto.DataType.Value(names.get(to, to.upper())))
    attrs = {"opset": 26, "to": number, "expected": [wanted]}
    (found,) = agrees("BitCast", {"x": x}, {"y": to}, **attrs)
    assert np.array_equal(found.view(bits), wanted.view(bits))


def test_bits_of_other_widths_are_refused(refuses):
    sentence = refuses("BitCast", {"x": (F32, [2])}, {"y": ("int8", None)}, opset=26, to=3)
    assert "BitCast" in sentence


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("starts", [[0, 3], None])
def test_writing_into_a_cache(agrees, rng, mode, starts):
    past, update = rng.standard_normal((2, 3, 5, 4), F32), rng.standard_normal((2, 3, 2, 4), F32)
    starts_of = np.array(starts or [0, 0])
    if mode == "circular" and starts:
        starts_of = np.array([4, 1])
    wanted = past.copy()
    for b in range(2):
        for t in range(2):
            wanted[b, :, (starts_of[b] + t) % 5] = update[b, :, t]
    inputs = {"p": past, "u": update} | ({"s": starts_of} if starts else {})
    agrees("TensorScatter", inputs, {"y": F32}, opset=24, mode=mode, expected=[wanted])


def test_unpooling_to_a_larger_shape(agrees, rng):
    x = rng.standard_normal((1, 2, 2, 2), F32)
    i = np.array([[[[0, 3], [8, 10]], [[21, 18], [24, 31]]]])
    wanted = np.zeros((1, 2, 5, 6), F32)
    for value, at in zip(x.ravel(), i.ravel(), strict=True):
        c, rest = divmod(at, 16)
        wanted[0, c, rest // 4, rest % 4] = value
    inputs = {"x": x, "i": i, "s": np.array([1, 2, 5, 6])}
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2], "expected": [wanted]}
    agrees("MaxUnpool", inputs, {"y": F32}, constants=["s"], **attrs)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_of_unsigned_numbers(agrees, rng, dtype, largest):
    x = rng.integers(0, np.iinfo(dtype).max, 11, dtype, endpoint=True)
    order = np.argsort(x)[:: -1 if largest else 1][:4]
    inputs = {"x": x, "k": np.array([4])}
    attrs = {"largest": largest, "expected": [x[order], order]}
    agrees("TopK", inputs, {"y": dtype, "i": "int64"}, constants=["k"], **attrs)


def test_a_constant_of_a_computed_shape(agrees):
    inputs = {"s": np.array([2, 3])}
    agrees("ConstantOfShape", inputs, {"y": F32}, expected=[np.zeros((2, 3), F32)])
