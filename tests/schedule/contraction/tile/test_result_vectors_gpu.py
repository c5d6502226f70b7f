"""Vectors of results whose innermost dimension is of one element."""

from group_kernels import CUDA, check, group

from tests.schedule.contraction.window_graphs import op, partitioned
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.tile.results.vectors import result_vectors

TEMPLATE = GpuContraction()
HEADS, DEPTH, WINDOW = 2, 32, 5


def queries_by_rows_and_columns(emit, y):
    """Q, K and V of heads, and Q twice more: relative positions multiply it by rows, by columns."""
    count = int(y.ty.shape[0]) // WINDOW**2
    y = emit(op.reshape(y, [count, WINDOW**2, 3, HEADS, DEPTH]))
    y = emit(op.permute_dims(y, [2, 0, 3, 1, 4]))
    y = emit(op.reshape(y, [3, count * HEADS, WINDOW**2, DEPTH]))
    q = emit(op.strided_slice(y, [0], [0], [1]))
    square = emit(op.reshape(q, [count * HEADS, WINDOW, WINDOW, DEPTH, 1]))
    turned = [emit(op.permute_dims(square, axes)) for axes in ([1, 0, 2, 3, 4], [2, 0, 1, 3, 4])]
    return [y, *turned]


def by_numpy(y):
    count = len(y) // WINDOW**2
    y = y.reshape(count, WINDOW**2, 3, HEADS, DEPTH).transpose(2, 0, 3, 1, 4)
    y = y.reshape(3, count * HEADS, WINDOW**2, DEPTH)
    square = y[0].reshape(count * HEADS, WINDOW, WINDOW, DEPTH, 1)
    return [y, square.transpose(1, 0, 2, 3, 4), square.transpose(2, 0, 1, 3, 4)]


def test_one_element_behind_is_no_reason_to_store_elements():
    given = partitioned(
        (1, 8, 9, 64),
        WINDOW,
        3 * HEADS * DEPTH,
        queries_by_rows_and_columns,
        exact=(lambda x: x, by_numpy),
    )
    claim, _ = check(TEMPLATE, *given, CUDA, 4e-3)
    assert result_vectors(claim.details.config.tile.problem).width == 8


def test_heads_that_are_apart_are_stored_in_shorter_vectors():
    def apart(emit, y):
        rows, columns = (int(d) for d in y.ty.shape)
        return op.permute_dims(emit(op.reshape(y, [rows, columns // 12, 12])), [1, 0, 2])

    params, body, _ = partitioned((1, 8, 9, 64), WINDOW, 96, apart)
    claim = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    assert result_vectors(claim.details.config.tile.problem).width == 4
