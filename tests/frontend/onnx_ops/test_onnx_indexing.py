from __future__ import annotations

import numpy as np
import pytest


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
