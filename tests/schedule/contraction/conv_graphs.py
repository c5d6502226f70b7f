"""Convolutions of channels-last images: groups, what they compute, and their kernels' results."""

import numpy as np
from group_kernels import CUDA, group, run_all, tensor
from tvm import relax

from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.variant import variant

op = relax.op
NHWC = (0, 2, 3, 1)


def laid_out(params, body, only=None):
    """The group of a body, all of its images channels-last, or those of some names."""
    members = group(params, body, CUDA)
    images = [v for v in (*members.inputs, *members.outputs) if v.constant is None]
    chosen = [v for v in images if len(v.shape) > 2 and (only is None or v.name in only)]
    return variant(members, {v: Layout(0) for v in chosen}).group


def convolution(x, w, stride, padding, dilation, groups):
    """Over NCHW in float64."""
    x = np.pad(x, [(0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2])
    k, c, *window = w.shape
    rows, columns = (
        (x.shape[2 + n] - dilation * (window[n] - 1) - 1) // stride + 1 for n in range(2)
    )
    y = np.zeros((len(x), k, rows, columns))
    for group_ in range(groups):
        own = slice(group_ * (k // groups), (group_ + 1) * (k // groups))
        image = x[:, group_ * c : (group_ + 1) * c]
        for r in range(window[0]):
            for s in range(window[1]):
                down, across = r * dilation, s * dilation
                part = image[
                    :,
                    :,
                    down : down + stride * (rows - 1) + 1 : stride,
                    across : across + stride * (columns - 1) + 1 : stride,
                ]
                y[:, own] += np.einsum("nchw,kc->nkhw", part, w[own, :, r, s])
    return y


def with_residual(shape, weight, options, dtype="float16", image=None, weights=None):
    """A convolution plus a residual: parameters, body, inputs, sums, and sums of absolute values.

    Sums are of float64. What is drawn of the image and the weights is edited by functions.
    """
    options = {"stride": 1, "padding": (1, 1), "dilation": 1, "groups": 1, **options}
    rng = np.random.default_rng()
    x, w = (rng.standard_normal(s).astype(dtype) for s in (shape, weight))
    x = x if image is None else image(x)
    w = w if weights is None else weights(w)
    wide = x.astype("float64"), w.astype("float64")
    with np.errstate(invalid="ignore"):  # of infinities that an image is given
        exact = convolution(*wide, **options)
        r = rng.standard_normal(exact.shape).astype(dtype)
        size = convolution(*map(np.abs, wide), **options) + np.abs(r.astype("float64"))

    def body(emit, x, r):
        given = {k: options[k] for k in ("padding", "dilation", "groups")}
        strides = options["stride"]
        y = emit(op.nn.conv2d(x, relax.const(w), strides, **given, out_dtype="float32"))
        return op.add(y, emit(op.astype(r, "float32")))

    params = [tensor("x", *shape, dtype=dtype), tensor("r", *r.shape, dtype=dtype)]
    return params, body, {"x": x, "r": r}, exact + r.astype("float64"), size


def launched(emission, members, arrays, spec=CUDA):
    """Run one kernel in the emulator over packed weights; returns its only result."""
    (result,) = run_all(members, emission, arrays, spec)
    return result
