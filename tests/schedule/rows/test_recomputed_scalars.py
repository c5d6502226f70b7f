"""Scalars that each row computes again: which programs have them, and what their axes become."""

import pytest
from group_kernels import CUDA, group, tensor
from tvm import relax, tirx

from tvm_fusion.schedule.rows.program.read import with_recomputed_scalars

op = relax.op
ROWS, COLUMNS, TERMS = 5, 72, 37
TENSORS = (tensor("terms", 1, TERMS, 1), tensor("x", 1, ROWS, COLUMNS))


def limited(emit, terms, x):
    """Rows, limited by the largest of some terms, and their sums."""
    most = emit(op.max(terms))
    kept = emit(op.minimum(x, most))
    return [kept, emit(op.sum(kept, -1))]


def of_rows(body, params=TENSORS, most=TERMS):
    program = group(params, body, CUDA).program
    return program, with_recomputed_scalars(program, most)


def test_rows_are_those_of_the_other_stages():
    before, after = of_rows(limited)
    extents = [int(a.extent) for a in before.stages[0].axes[: before.row_rank]]
    assert extents in ([], [1])
    for stage in after.stages:
        assert [int(a.extent) for a in stage.axes[: after.row_rank] if int(a.extent) > 1] == [ROWS]
    scalar, *rest = after.stages
    assert len(scalar.axes) == after.row_rank
    assert int(scalar.reduce[0].extent) * int(scalar.reduce[-1].extent) >= TERMS
    loads = [x for s in rest for x in s.loads if x.source.same_as(scalar.targets[0])]
    assert loads
    assert all(len(x.indices) == after.row_rank for x in loads)


def also_a_result(emit, terms, x):
    most = emit(op.max(terms))
    return [most, emit(op.sum(emit(op.minimum(x, most)), -1))]


def of_all_rows(emit, terms, x):
    """The other stage is a reduction of everything, too."""
    most = emit(op.max(terms))
    return [emit(op.sum(emit(op.minimum(x, most))))]


def without_scalars(emit, terms, x):
    return [emit(op.sum(emit(op.minimum(x, x)), -1)), emit(op.max(terms, [0, 1]))]


@pytest.mark.parametrize(
    ("body", "most"),
    [(limited, TERMS - 1), (also_a_result, TERMS), (of_all_rows, TERMS), (without_scalars, TERMS)],
)
def test_others_stay(body, most):
    assert of_rows(body, most=most)[1] is None


def test_terms_must_be_counted():
    symbolic = (tensor("terms", tirx.Var("n", "int64"), 1), TENSORS[1])
    assert of_rows(limited, symbolic)[1] is None
