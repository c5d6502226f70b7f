"""RMS norm prologues of skinny GEMM on a GPU."""

import numpy as np
import pytest
from group_kernels import CUDA, check, compiles_for_cuda, group, kernel, shared_bytes, tensor
from tvm import relax

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction

op = relax.op
TEMPLATE = GpuContraction()
EPSILON = 1e-3


def rms(x, g):
    x, g = x.astype("float64"), g.astype("float64")
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * g


def normed(emit, x, g, w):
    return op.matmul(emit(op.nn.rms_norm(x, g, [-1], EPSILON)), w, "float32")


def normed_along(emit, x, g, w):
    return normed(emit, x, g, emit(op.permute_dims(w)))


def gated(emit, x, g, w):
    sides = emit(op.split(emit(normed(emit, x, g, w)), 2, axis=-1))
    gate, up = (emit(relax.TupleGetItem(sides, i)) for i in range(2))
    return op.multiply(emit(op.nn.silu(gate)), up)


def gated_reference(x, g, w):
    gate, up = np.split(rms(x, g) @ w, 2, axis=-1)
    return [gate / (1 + np.exp(-gate)) * up]


def rotated(emit, x, g, w, c, s):
    """Columns of heads of 8, whose halves are turned."""
    total = emit(normed(emit, x, g, w))
    rows, columns = (int(d) for d in total.ty.shape)
    heads = emit(op.reshape(total, (rows, columns // 8, 8)))
    halves = emit(op.split(heads, 2, axis=-1))
    a, b = (emit(relax.TupleGetItem(halves, i)) for i in range(2))
    turned = emit(op.concat([emit(op.negative(b)), a], -1))
    return op.add(emit(op.multiply(heads, c)), emit(op.multiply(turned, s)))


def rotated_reference(x, g, w, c, s):
    heads = (rms(x, g) @ w).reshape(len(x), -1, 8)
    a, b = np.split(heads, 2, axis=-1)
    return [heads * c + np.concatenate([-b, a], -1) * s]


def given(rows, terms, columns, dtype="float32"):
    return [
        tensor("x", rows, terms, dtype=dtype),
        tensor("g", terms, dtype=dtype),
        tensor("w", terms, columns, dtype=dtype),
    ]


def given_along(rows, terms, columns):
    return [*given(rows, terms, columns)[:2], tensor("w", columns, terms)]


def rotary(rows, terms, columns):
    return [*given(rows, terms, columns), tensor("c", 8), tensor("s", 8)]


def plain_reference(x, g, w):
    return [rms(x, g) @ w]


CASES = {
    "row": (given(1, 1000, 128), normed, plain_reference),
    "rows": (given(5, 129, 264), normed, plain_reference),
    "rows_in_turns": (given(16, 127, 264), normed, plain_reference),
    "along": (given_along(1, 1000, 129), normed_along, lambda x, g, w: [rms(x, g) @ w.T]),
    "rows_along": (given_along(7, 512, 33), normed_along, lambda x, g, w: [rms(x, g) @ w.T]),
    "short_along": (given_along(3, 64, 100), normed_along, lambda x, g, w: [rms(x, g) @ w.T]),
    "few_columns": (given(9, 32, 4), normed, plain_reference),  # a block is half a warp
    "gated": (given(1, 300, 512), gated, gated_reference),
    "gated_rows": (given(7, 129, 528), gated, gated_reference),
    "rotary": (rotary(3, 256, 96), rotated, rotated_reference),
}


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_computes_the_product(example):
    check(TEMPLATE, *example, CUDA)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_types(dtype, tolerance):
    check(TEMPLATE, given(3, 1000, 264, dtype), normed, plain_reference, CUDA, tolerance=tolerance)


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_claims_name_the_shared_memory(example):
    claim, func = kernel(TEMPLATE, group(*example[:2], CUDA), CUDA)
    assert claim.shared_bytes == shared_bytes(func)


def refused(params, body):
    claim = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    assert isinstance(claim, Refusal)
    return claim.code


def test_many_rows_are_another_kernel():
    assert refused(given(17, 256, 128), normed) == "not_skinny"


def test_rows_that_shared_memory_does_not_hold_are_another_kernel():
    assert refused(given(1, 8193, 128), normed) == "not_skinny"


def test_what_rows_cost_is_counted_once():
    claim = TEMPLATE.claim(group(given(1, 256, 128), normed, CUDA), CUDA.device)
    assert 2 * 256 * 128 <= claim.flops < 2.2 * 256 * 128


def test_rows_that_are_needed_elsewhere_are_another_kernel():
    def both(emit, x, g, w):
        rows = emit(op.nn.rms_norm(x, g, [-1], EPSILON))
        return [rows, op.matmul(rows, w, "float32")]

    assert isinstance(refused(given(1, 256, 128), both), str)


def test_a_subtracted_mean_is_another_kernel():
    def centred(emit, x, g, w):
        mean = emit(op.mean(x, [-1], keepdims=True))
        return op.matmul(emit(op.multiply(emit(op.subtract(x, mean)), g)), w, "float32")

    assert refused(given(1, 256, 128), centred) == "no_norm_scale"


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    assert compiles_for_cuda(TEMPLATE, CASES)
