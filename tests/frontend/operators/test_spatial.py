"""Windows of poolings that reach beyond the image, against sums over every element."""

import itertools

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

from tvm_fusion.frontend.operators.spatial import average_windows

EXTENTS, BATCH = (7, 5), (2, 3)


def reference(x, out, kernel, strides, dilations, before, after, counts_padding):
    """Sum each window element by element; those beyond the padding never count."""
    result = np.zeros((*BATCH, *out))
    for place in itertools.product(*map(range, out)):
        count = 0
        for step in itertools.product(*map(range, kernel)):
            at = [
                p * s - b + k * d
                for p, s, b, k, d in zip(place, strides, before, step, dilations, strict=True)
            ]
            if all(0 <= a < e for a, e in zip(at, EXTENTS, strict=True)):
                result[(..., *place)] += x[(..., *at)]
                count += 1
            else:
                padded = zip(at, EXTENTS, before, after, strict=True)
                count += counts_padding and all(-b <= a < e + f for a, e, b, f in padded)
        result[(..., *place)] /= count
    return result


def calls(func):
    return [binding.value for block in func.body.blocks for binding in block.bindings]


@pytest.mark.parametrize("counts_padding", [False, True])
@pytest.mark.parametrize(
    ("out", "kernel", "strides", "dilations", "before", "after", "read"),
    [
        ((1, 1), (40, 30), (40, 30), (1, 1), (0, 0), (0, 0), (7, 5)),
        ((1, 2), (40, 4), (9, 3), (1, 1), (9, 0), (2, 0), (7, 4)),
        ((3, 1), (9, 6), (3, 2), (1, 2), (4, 4), (4, 1), (9, 3)),
        ((1, 1), (6, 4), (1, 1), (3, 3), (4, 1), (0, 0), (2, 1)),
    ],
)
def test_averages_of_what_exists(
    out, kernel, strides, dilations, before, after, read, counts_padding, run, rng
):
    """Windows are cut down to steps that some of them have in the image."""
    x = relax.Var("x", relax.TensorType((*BATCH, *EXTENTS), "float32"))
    windows = (EXTENTS, out, kernel, strides, dilations, (before, after), counts_padding)
    mod = main_module([x], lambda emit, x: average_windows(x, emit, *windows))
    (size,) = (c.attrs.pool_size for c in calls(mod["main"]) if c.op.name.endswith("avg_pool2d"))
    assert tuple(map(int, size)) == read
    value = rng.standard_normal((*BATCH, *EXTENTS), dtype="float32")
    expected = reference(value, out, kernel, strides, dilations, before, after, counts_padding)
    np.testing.assert_allclose(run(mod, value), expected, rtol=1e-5, atol=1e-6)
