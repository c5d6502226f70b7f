"""Window partitions in front of products: padded, reshaped, transposed, rolled images."""

import numpy as np
from group_kernels import tensor
from tvm import relax

op = relax.op


def windows_of(emit, x, window):
    """Cut ``[batch, height, width, channels]`` into windows, zeros beyond the edges."""
    batch, *sizes, channels = (int(d) for d in x.ty.shape)
    counts = [-(-size // window) for size in sizes]
    pads = [count * window - size for count, size in zip(counts, sizes, strict=True)]
    if any(pads):
        x = emit(op.nn.pad(x, [0, 0, 0, pads[0], 0, pads[1], 0, 0]))
    split = [batch, counts[0], window, counts[1], window, channels]
    x = emit(op.permute_dims(emit(op.reshape(x, split)), [0, 1, 3, 2, 4, 5]))
    return emit(op.reshape(x, [batch * counts[0] * counts[1] * window * window, channels]))


def windows_by_numpy(x, window):
    """The same of an array."""
    batch, height, width, channels = x.shape
    counts = [-(-size // window) for size in (height, width)]
    pads = [
        (0, 0),
        *((0, n * window - s) for n, s in zip(counts, x.shape[1:3], strict=True)),
        (0, 0),
    ]
    x = np.pad(x, pads).reshape(batch, counts[0], window, counts[1], window, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, channels)


def partitioned(image, window, columns, finish=lambda emit, y: y, turn=None, exact=None):
    """Parameters, body and reference of a product of windows, and of what is made of it.

    ``turn`` comes before the windows, and ``exact`` is what ``turn`` and ``finish`` compute.
    """
    turn = turn or (lambda emit, x: x)
    before, after = exact or (lambda x: x, lambda y: [y])
    params = [tensor("x", *image, dtype="float16")]
    params += [tensor("w", image[-1], columns, dtype="float16"), tensor("b", columns)]

    def body(emit, x, w, b):
        rows = windows_of(emit, turn(emit, x), window)
        total = emit(op.add(emit(op.matmul(rows, w, "float32")), b))
        return finish(emit, emit(op.astype(total, "float16")))

    def reference(x, w, b):
        return after(windows_by_numpy(before(x), window) @ w + b)

    return params, body, reference
