"""Graphs of products of ragged rows, each with the matrix of its group, and what they compute."""

import numpy as np
from group_kernels import tensor
from split_products import sigmoid
from tvm import relax

from tvm_fusion.core.tir.ragged import grouped_matmul

op = relax.op


def experts(m, groups, k, n, finish=None, offsets="int32", dtype="float16", weight=None):
    """Rows by experts whose weights lie as linear layers have them, and what follows."""
    given = [tensor("x", m, k, dtype=dtype), tensor("w", groups, n, k, dtype=dtype)]
    given += [tensor("ends", groups, dtype=offsets), tensor("b", m, n, dtype=dtype)]

    def body(emit, x, w, ends, b):
        w = w if weight is None else relax.const(weight)
        builder, turned = relax.BlockBuilder.current(), emit(op.permute_dims(w, [0, 2, 1]))
        total = emit(builder.call_te(grouped_matmul, x, turned, ends, "float32"))
        return [total] if finish is None else finish(emit, total, b)

    return given, body


def gated(emit, total, b):
    """Bias, and SiLU of one half of the columns times the other."""
    biased = emit(op.add(total, emit(op.astype(b, "float32"))))
    gate, up = (emit(x) for x in emit(op.split(biased, 2, 1)))
    return [op.astype(emit(op.multiply(emit(op.nn.silu(gate)), up)), "float16")]


def expected(finish, x, w, ends, b):
    """In float64."""
    x, w, b = (a.astype("float64") for a in (x, w, b))
    total, start = np.zeros((len(x), w.shape[1])), 0
    for matrix, end in zip(w, ends, strict=True):
        total[start:end] = x[start:end] @ matrix.T
        start = end
    if finish is None:
        return [total]
    gate, up = np.split(total + b, 2, 1)
    return [gate * sigmoid(gate) * up]


def drawn(params, ends):
    """Inputs; rows behind the last group are NaNs and infinities."""
    rng = np.random.default_rng()
    found = {p.name: rng.standard_normal([int(d) for d in p.ty.shape]) for p in params}
    found = {p.name: found[p.name].astype(str(p.ty.dtype)) for p in params}
    found["x"][ends[-1] :: 2] = np.nan
    found["x"][ends[-1] + 1 :: 2] = np.inf
    return found | {"ends": np.array(ends, str(params[2].ty.dtype))}


def ends_of(rows):
    """Odd lengths, empty groups first, between and last, one group of all rows, none of any."""
    some = sorted(np.random.default_rng().integers(0, rows + 1, 3))
    found = [[0, rows // 3 + 1, rows // 3 + 1, rows - 5], [0, 0, rows, rows], [rows] * 4, [0] * 4]
    return [*found, [1, 2, 3, 4], [*map(int, some), rows]]
