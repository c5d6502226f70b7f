"""Column reductions of few terms on GPUs: pooling, a vector of columns in a thread."""

import numpy as np
import pytest
from group_kernels import CUDA, agrees, cuda_kernel, emitted, group, tensor
from tvm import relax

from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.schedule.columns.template import ColumnReductions

op = relax.op
TEMPLATE = ColumnReductions()


def pooled(emit, x):
    options = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "layout": "NHWC"}
    return emit(op.nn.relu(emit(op.nn.max_pool2d(x, **options))))


def windows(x, edge):
    """The nine images that windows of 3 by 3 read, two pixels apart."""
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=edge)
    ends = (wide.shape[1] - 2, wide.shape[2] - 2)
    return np.stack(
        [wide[:, i : i + ends[0] : 2, j : j + ends[1] : 2] for i in range(3) for j in range(3)]
    )


CASES = {
    "padded maximum": (
        tensor("x", 2, 9, 13, 24, dtype="float16"),
        pooled,
        lambda x: np.maximum(windows(x, -np.inf).max(0), 0),
    ),
    "average": (
        tensor("x", 3, 10, 6, 12),
        lambda e, x: e(op.nn.avg_pool2d(x, (2, 3), (2, 3), layout="NHWC")),
        lambda x: x.reshape(3, 5, 2, 2, 3, 12).mean((2, 4)),
    ),
    "sum": (tensor("x", 7, 5, 40), lambda e, x: e(op.sum(x, [0])), lambda x: x.sum(0)),
    "turned": (
        tensor("x", 3, 8, 5, 16, dtype="float16"),
        lambda e, x: e(op.permute_dims(e(op.max(x, [1])), [0, 2, 1])),
        lambda x: x.max(1).transpose(0, 2, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_window_is_reduced(name):
    x, body, reference = CASES[name]
    made = emitted(TEMPLATE, [x], body, CUDA)
    agrees(made, [x], lambda x: [reference(x)], CUDA, 2e-3 if x.ty.dtype == "float16" else 2e-5)


def test_threads_have_vectors():
    claim = TEMPLATE.claim(
        group([tensor("x", 2, 9, 13, 24, dtype="float16")], pooled, CUDA), CUDA.device
    )
    assert isinstance(claim, Claim)
    assert claim.parallelism == -(-2 * 5 * 7 * 24 // (8 * 128))


def gathered(emit, x, order):
    """Rows of a table, eight of them added up: what a token's experts give."""
    count = int(order.ty.shape[0]) // 8
    rows = emit(op.take(x, emit(op.add(order, relax.const(0, "int64"))), axis=0))
    return emit(op.sum(emit(op.reshape(rows, [count, 8, int(x.ty.shape[1])])), [1]))


def test_gathered_rows_are_in_vectors():
    params = [tensor("x", 3, 72, dtype="float16"), tensor("order", 5 * 8, dtype="int64")]
    agrees(
        emitted(TEMPLATE, params, gathered, CUDA),
        params,
        lambda x, order: [x.astype("float64")[order].reshape(5, 8, 72).sum(1)],
        CUDA,
        2e-3,
    )


def test_many_gathered_rows_are_refused():
    params = [tensor("x", 3, 72, dtype="float16"), tensor("order", 40 * 8, dtype="int64")]

    def body(emit, x, order):
        return emit(op.sum(emit(op.take(x, order, axis=0)), [0]))

    assert isinstance(TEMPLATE.claim(group(params, body, CUDA), CUDA.device), Refusal)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_are_refused(axis):
    members = group([tensor("x", 7, 7)], lambda e, x: e(op.max(x, [axis])), CUDA)
    assert isinstance(TEMPLATE.claim(members, CUDA.device), Refusal)


@pytest.mark.cuda_toolchain
def test_loads_and_stores_are_vectors():
    x, body, _ = CASES["padded maximum"]
    text = cuda_kernel(emitted(TEMPLATE, [x], body, CUDA).func)
    assert text.count("*(uint4*)(x_vector") >= 9
    assert "__syncthreads" not in text
