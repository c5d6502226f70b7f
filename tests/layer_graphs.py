"""Graphs of layers one behind the other, of half types, and what they compute."""

import itertools

from group_kernels import tensor
from split_products import GATES
from tvm import relax

op = relax.op


def layers(m, *widths, activation="relu", dtype="float16", turned=False, has_residual=False):
    """Layers with biases, and an activation between two.

    ``m`` is the number of rows, or the extents of several axes of rows; ``turned`` tells of each
    weight, or of all, whether it is ``[n, k]``.
    """
    rows = m if isinstance(m, tuple) else (m,)
    last = len(widths) - 2
    turned = turned if isinstance(turned, tuple) else (turned,) * (last + 1)
    given = [tensor("x", *rows, widths[0], dtype=dtype)]
    for i, (k, n) in enumerate(itertools.pairwise(widths)):
        given.append(tensor(f"w{i}", *((n, k) if turned[i] else (k, n)), dtype=dtype))
        given.append(tensor(f"b{i}", n, dtype=dtype))
    act, exact = GATES[activation]

    def body(emit, x, *given):
        h = x
        for i, (w, b) in enumerate(zip(given[::2], given[1::2], strict=True)):
            w = emit(op.permute_dims(w)) if turned[i] else w
            h = emit(op.add(emit(op.matmul(h, w)), b))
            h = h if i == last else emit(act(h))
        return op.add(h, x) if has_residual else h

    def reference(x, *given):
        h = x
        for i, (w, b) in enumerate(zip(given[::2], given[1::2], strict=True)):
            h = h @ (w.T if turned[i] else w) + b
            h = h if i == last else exact(h)
        return [h + x if has_residual else h]

    return given, body, reference
