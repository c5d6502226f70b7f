import numpy as np
import pytest

F32 = "float32"


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    ("size", "attrs"),
    [
        ((7, 8), {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 1, 1, 0]}),
        ((5, 6), {"kernel_shape": [2, 4], "strides": [3, 3]}),
        ((9,), {"kernel_shape": [4], "strides": [3], "pads": [2, 1]}),
    ],
)
def test_averages_rounded_up(agrees, rng, size, attrs, include):
    x = rng.standard_normal((2, 3, *size), dtype=F32)
    agrees("AveragePool", {"x": x}, {"y": F32}, ceil_mode=1, count_include_pad=include, **attrs)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_padding(agrees, rng, op, auto_pad):
    x = rng.standard_normal((1, 2, 7, 9), dtype=F32)
    agrees(op, {"x": x}, {"y": F32}, auto_pad=auto_pad, kernel_shape=[3, 2], strides=[2, 2])


@pytest.mark.slow_beyond(4)
@pytest.mark.parametrize(
    ("size", "attrs"),
    [
        ((6, 7), {"kernel_shape": [2, 3], "strides": [2, 2]}),
        ((6, 7), {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}),
        ((6, 7), {"kernel_shape": [2, 2], "dilations": [2, 3], "storage_order": 1}),
        ((9,), {"kernel_shape": [4], "strides": [3], "ceil_mode": 1}),
        ((4, 5, 3), {"kernel_shape": [2, 2, 2], "strides": [1, 2, 1]}),
    ],
)
def test_places_of_the_largest(agrees, rng, size, attrs):
    x = rng.standard_normal((2, 3, *size), dtype=F32)
    agrees("MaxPool", {"x": x}, {"y": F32, "i": "int64"}, **attrs)


def test_the_first_of_equals_is_taken(agrees):
    x = np.ones((1, 1, 4, 4), F32)
    agrees("MaxPool", {"x": x}, {"y": F32, "i": "int64"}, kernel_shape=[2, 2], strides=[2, 2])
