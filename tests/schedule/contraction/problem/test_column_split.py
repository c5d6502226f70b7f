"""Epilogues over a column split (gated layers, rotary): one kernel, checked against float64."""

import numpy as np
import pytest
from group_kernels import CUDA, check, compiles_for_cuda, group, tensor
from split_products import columns, rotated, rotated_reference, sigmoid
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.index.inline import inlined

op = relax.op
n = tirx.Var("n", "int64")


def gated(emit, x, w):
    gate, up = columns(emit, emit(op.matmul(x, w)), w.ty.shape[1] // 2)
    return op.multiply(emit(op.multiply(gate, emit(op.sigmoid(gate)))), up)


def gated_reference(x, w):
    gate, up = np.split(x @ w, 2, axis=-1)
    return [gate * sigmoid(gate) * up]


def gated_with_bias(emit, x, w, b):
    """The gate comes second, and is one of the outputs."""
    up, gate = columns(emit, emit(op.add(emit(op.matmul(x, w)), b)), w.ty.shape[1] // 2)
    return [op.multiply(emit(op.sigmoid(gate)), up), op.negative(gate)]


def gated_with_bias_reference(x, w, b):
    up, gate = np.split(x @ w + b, 2, axis=-1)
    return [sigmoid(gate) * up, -gate]


def three(emit, x, w):
    """Three pieces, and the sum itself."""
    total = emit(op.matmul(x, w))
    a, b, c = columns(emit, total, w.ty.shape[1] // 3, 2 * w.ty.shape[1] // 3)
    return [total, op.subtract(emit(op.multiply(a, b)), c)]


def three_reference(x, w):
    a, b, c = np.split(x @ w, 3, axis=-1)
    return [x @ w, a * b - c]


def typed(name, *shape):
    return tensor(name, *shape, dtype="float16")


def gated_half(emit, x, w):
    """Half precision, summed and gated in float32."""
    gate, up = columns(emit, emit(op.matmul(x, w, "float32")), w.ty.shape[1] // 2)
    return op.astype(emit(op.multiply(emit(op.sigmoid(gate)), up)), "float16")


def gated_half_reference(x, w):
    gate, up = np.split(x @ w, 2, axis=-1)
    return [sigmoid(gate) * up]


TABLES = [tensor("cos", 7, 32), tensor("sin", 7, 32)]
CASES = {
    "gated": ([tensor("x", 7, 33), tensor("w", 33, 96)], gated, gated_reference),
    "odd": ([tensor("x", 3, 7, 33), tensor("w", 33, 74)], gated, gated_reference),
    "symbolic": ([tensor("x", 2, n, 33), tensor("w", 33, 96)], gated, gated_reference),
    "row": ([tensor("x", 33), tensor("w", 33, 96)], gated, gated_reference),
    "bias": (
        [tensor("x", 7, 33), tensor("w", 33, 96), tensor("b", 96)],
        gated_with_bias,
        gated_with_bias_reference,
    ),
    "three": ([tensor("x", 7, 33), tensor("w", 33, 96)], three, three_reference),
    "rotated": (
        [tensor("x", 2, 7, 33), tensor("w", 33, 160), *TABLES],
        rotated,
        rotated_reference,
    ),
    "half": ([typed("x", 7, 33), typed("w", 33, 96)], gated_half, gated_half_reference),
}


@pytest.mark.parametrize("name", CASES)
def test_one_kernel(name):
    params, body, reference = CASES[name]
    tolerance = 1e-2 if name == "half" else 2e-5
    claim, _ = check(GpuContraction(), params, body, reference, CUDA, tolerance)
    assert claim.launches == 1


@pytest.mark.cuda_toolchain
def test_kernels_are_machine_code():
    assert compiles_for_cuda(GpuContraction(), CASES)


def claimed(params, body):
    return GpuContraction().claim(group(params, body, CUDA), CUDA.device)


def check_elsewhere(params, body):
    refusal = claimed(params, body)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "epilogue_elsewhere"


def test_parts_that_lie_across_each_other_are_refused():
    """Neither rows nor columns are vectors of all results; of one or the other they are."""

    def rows_and(turned):
        def body(emit, x, w):
            parts = emit(op.split(emit(op.matmul(x, w)), 2, -1))
            halves = [emit(parts[0]), emit(op.permute_dims(emit(parts[1]), [1, 0]))]
            if turned:
                halves[0] = emit(op.permute_dims(halves[0], [1, 0]))
            return relax.Tuple(halves)

        return claimed([typed("x", 256, 64), typed("w", 64, 256)], body)

    refusal = rows_and(False)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "results_across"
    assert isinstance(rows_and(True), Claim)


def test_overlapping_columns_are_no_split():
    """Every column is one of the left and one of the right of somebody."""

    def body(emit, x, w):
        total = emit(op.matmul(x, w))
        left = emit(op.strided_slice(total, [1], [0], [5], [1]))
        right = emit(op.strided_slice(total, [1], [1], [6], [1]))
        return op.add(left, right)

    check_elsewhere([tensor("x", 7, 33), tensor("w", 33, 6)], body)


def test_reversed_columns_are_no_split():
    def body(emit, x, w):
        total = emit(op.matmul(x, w))
        return op.add(total, emit(op.flip(total, 1)))

    check_elsewhere([tensor("x", 7, 33), tensor("w", 33, 6)], body)


def test_other_rows_are_no_split_of_columns():
    def body(emit, x, w):
        total = emit(op.matmul(x, w))
        return op.multiply(total, emit(op.permute_dims(total, [1, 0])))

    check_elsewhere([tensor("x", 7, 33), tensor("w", 33, 7)], body)


def test_column_splits_of_symbolic_n_are_refused():
    """How many periods there are must be known."""

    def body(emit, x, w):
        pairs = emit(op.reshape(emit(op.matmul(x, w)), (7, 2, n)))
        halves = (emit(op.take(pairs, relax.const(i, "int64"), axis=1)) for i in range(2))
        return op.multiply(*halves)

    check_elsewhere([tensor("x", 7, 33), tensor("w", 33, 2 * n)], body)


def test_splits_of_rows():
    """Any axis of the sum may be split."""

    def body(emit, x, w):
        split = emit(op.split(emit(op.matmul(x, w)), 2, axis=0))
        return op.multiply(*(emit(relax.TupleGetItem(split, i)) for i in range(2)))

    def reference(x, w):
        return [np.prod(np.split(x @ w, 2), axis=0)]

    params = [tensor("x", 14, 33), tensor("w", 33, 5)]
    check(GpuContraction(), params, body, reference, CUDA)


def test_conditions_name_whole_periods():
    params, body, _ = CASES["rotated"]
    program = group(params, body, CUDA).program
    contraction = analyse(program, inlined(program))
    split = contraction.column_split
    assert (split.count, split.width) == (2, 16)
    assert len(contraction.results) == 6
    for result in contraction.results:
        assert split.position.var not in tirx.analysis.undefined_vars(result.condition)
        assert tirx.analysis.undefined_vars(result.indices[-1]) == [split.position.var]
        assert split.part.var not in tirx.analysis.undefined_vars(result.value)


def test_sums_at_one_place_need_no_column_split():
    params = [tensor("x", 7, 33), tensor("w", 33, 6)]
    members = group(params, lambda emit, x, w: op.exp(emit(op.matmul(x, w))), CUDA)
    assert isinstance(GpuContraction().claim(members, CUDA.device), Claim)
    assert analyse(members.program, inlined(members.program)).column_split is None
