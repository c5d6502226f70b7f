"""Graphs of GEMMs with operands of half types and sums of float32, and what they compute."""

from dataclasses import fields, replace

import numpy as np
from group_kernels import CUDA, arrays, close, group, run, tensor
from tvm import relax

from tvm_fusion.schedule.contraction.gpu.space import KERNELS
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.contraction.tile.shape import TileConfig
from tvm_fusion.schedule.index.inline import inlined

op = relax.op


def product(m, k, n, a_is_turned=False, b_is_turned=False, dtype="float16", batch=()):
    given = [
        tensor("x", *batch, *((k, m) if a_is_turned else (m, k)), dtype=dtype),
        tensor("w", *batch, *((n, k) if b_is_turned else (k, n)), dtype=dtype),
    ]
    last = [*range(len(batch)), len(batch) + 1, len(batch)]

    def body(emit, x, w):
        a = emit(op.permute_dims(x, last)) if a_is_turned else x
        b = emit(op.permute_dims(w, last)) if b_is_turned else w
        return op.matmul(a, b, "float32")

    def reference(x, w):
        a, b = (x.swapaxes(-1, -2) if a_is_turned else x, w.swapaxes(-1, -2) if b_is_turned else w)
        return [a @ b]

    return given, body, reference


def with_epilogue(m, k, n, b_is_turned=False):
    """Bias, ReLU and a residual, and the sum itself as a second result."""
    given, multiply, reference = product(m, k, n, b_is_turned=b_is_turned)
    given += [tensor("b", n, dtype="float16"), tensor("r", m, n, dtype="float16")]

    def body(emit, x, w, b, r):
        biased = emit(op.add(emit(multiply(emit, x, w)), emit(op.astype(b, "float32"))))
        return [biased, op.add(emit(op.astype(emit(op.nn.relu(biased)), "float16")), r)]

    def expected(x, w, b, r):
        (total,) = reference(x, w)
        return [total + b, np.maximum(total + b, 0) + r]

    return given, body, expected


def heads(rows, width, count, size):
    """Columns of attention heads, stored head by head."""
    given = [tensor("x", 2, rows, width, dtype="float16")]
    given.append(tensor("w", width, count * size, dtype="float16"))

    def body(emit, x, w):
        y = emit(op.reshape(emit(op.matmul(x, w, "float32")), (2, rows, count, size)))
        return op.permute_dims(y, [0, 2, 1, 3])

    def reference(x, w):
        return [(x @ w).reshape(2, rows, count, size).transpose(0, 2, 1, 3)]

    return given, body, reference


def split(m, k, *columns):
    """Columns that are split, each part with a bias of its own."""
    bounds = list(np.cumsum(columns)[:-1])
    given = [tensor("x", m, k, dtype="float16"), tensor("w", k, sum(columns), dtype="float16")]
    given += [tensor(f"b{i}", n, dtype="float16") for i, n in enumerate(columns)]

    def body(emit, x, w, *biases):
        parts = emit(op.split(emit(op.matmul(x, w, "float16")), [int(b) for b in bounds], 1))
        return [op.add(emit(parts[i]), b) for i, b in enumerate(biases)]

    def reference(x, w, *biases):
        return [p + b for p, b in zip(np.split(x @ w, bounds, 1), biases, strict=True)]

    return given, body, reference


def contraction_of(params, body):
    members = group(params, body, CUDA)
    return members, analyse(members.program, inlined(members.program))


def computes(func, members, case, seed, spec=CUDA):
    """Run a kernel of a case on the emulator, and compare each result as exactly as its type is."""
    params, _, reference = case
    inputs = arrays(params, seed)
    expected = reference(*(x.astype("float64") for x in inputs.values()))
    for result, wide in zip(run(func, members, inputs, spec), expected, strict=True):
        close([result], [wide], 2e-3 if result.dtype == "float16" else 2e-5)


def with_numbers(configs, **numbers):
    """Find the first configuration with some numbers."""
    return next(c for c in configs if numbers.items() <= KERNELS.plain(c).items())


def changed(config, **numbers):
    """Change numbers of a configuration, of its tile or of its own."""
    of_tile = {f.name: numbers.pop(f.name) for f in fields(TileConfig) if f.name in numbers}
    return replace(config, tile=replace(config.tile, **of_tile), **numbers)
