"""Group norms with SiLU in two launches: run in the emulator, held against float64."""

import numpy as np
from group_kernels import run_launches, tensor
from tvm import relax

op = relax.op
EPSILON = 1e-5


def group_norm(groups):
    """Return the body of a module: a norm of groups of channels, then SiLU."""

    def body(emit, x, scale, shift):
        y = emit(op.nn.group_norm(x, scale, shift, groups, 1, [2, 3], epsilon=EPSILON))
        return emit(op.nn.silu(y))

    return body


def parameters(shape, dtype="float16"):
    """Declare an image and the scale and shift of its channels."""
    return [
        tensor("x", *shape, dtype=dtype),
        tensor("scale", shape[1], dtype=dtype),
        tensor("shift", shape[1], dtype=dtype),
    ]


def drawn(shape, dtype, offset):
    """Draw them; elements of the image are off zero."""
    rng = np.random.default_rng()
    x, scale, shift = (rng.standard_normal(s) for s in (shape, shape[1:2], shape[1:2]))
    return [v.astype(dtype) for v in (x + offset, scale, shift)]


def expected(x, scale, shift, groups):
    """Compute it in the type of its operands."""
    rows = x.reshape(len(x), groups, -1)
    mean, variance = rows.mean(-1, keepdims=True), rows.var(-1, keepdims=True)
    y = ((rows - mean) / np.sqrt(variance + EPSILON)).reshape(x.shape)
    y = y * scale[:, None, None] + shift[:, None, None]
    return y / (1 + np.exp(-y))


def run(claim, inputs, shape, dtype):
    """Launch both kernels one after the other."""
    return run_launches(claim, inputs, [(shape, dtype)])


TERMS = (
    128  # additions on the way of an element into a sum, at most: 64 of a thread, the rest trees
)


def check(found, inputs, dtype, groups):
    """Allow two roundings of the result, and those of the sums.

    A mean is off by ``TERMS * u`` of the largest element, a variance by as much of itself; SiLU's
    slope is at most 1.1.
    """
    x, scale, shift = (v.astype("float64") for v in inputs)
    exact, unit = expected(x, scale, shift, groups), 2.0**-24
    rows = x.reshape(len(x), groups, -1)
    deviation = np.sqrt(rows.var(-1, keepdims=True) + EPSILON)
    z = np.abs(rows - rows.mean(-1, keepdims=True)) / deviation
    sums = TERMS * unit * (2 * np.abs(rows).max(-1, keepdims=True) / deviation + z)
    linear = sums.reshape(x.shape) * np.abs(scale)[:, None, None]
    linear += 4 * unit * (z.reshape(x.shape) * np.abs(scale)[:, None, None] + np.abs(shift).max())
    rounded = 2 * float(np.finfo(dtype).eps) * np.abs(exact) + float(np.finfo(dtype).tiny)
    assert (np.abs(found.astype("float64") - exact) <= rounded + 1.1 * linear).all()
