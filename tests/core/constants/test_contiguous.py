"""Copies in C order are numpy's own, whatever way they are made."""

import os

import numpy as np
import pytest

from tvm_fusion.core.constants.contiguous import contiguous


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1537, 1031), (1, 0)),
        ((3, 517, 901), (0, 2, 1)),
        ((3, 517, 901), (2, 0, 1)),
        ((701, 515, 3, 1), (3, 2, 1, 0)),
        ((1, 1201, 1203), (2, 0, 1)),
        ((7, 5), (1, 0)),
    ],
)
def test_a_transposed_array_is_copied_element_by_element(shape, axes, cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    rng = np.random.default_rng()
    for dtype in ("float16", "float32"):
        array = rng.standard_normal(shape).astype(dtype).transpose(axes)
        found = contiguous(array)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, array, strict=True)


def test_slices_and_reversed_arrays_are_copied_and_others_are_not():
    array = np.random.default_rng().standard_normal((1203, 1031))
    for view in (
        array[::-1].T,
        array[:, ::2].T,
        array[::2, ::-1],
        np.broadcast_to(array, (2, 1203, 1031)).T,
    ):
        np.testing.assert_array_equal(contiguous(view), view, strict=True)
    assert contiguous(array) is array
    assert contiguous(np.float32(2)).shape == (1,)
