"""Exponentials of differences from a row's maximum: told by proof, right for all numbers."""

import numpy as np
import pytest
import tvm
from tvm import te

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.row_checks import build, cpu_target
from tests.schedule.rows.row_programs import Example, compute, reduced, tensor
from tvm_fusion.schedule.rows.cpu.kernel import schedule_rows_cpu
from tvm_fusion.schedule.rows.program.row_program import row_program
from tvm_fusion.schedule.rows.program.softmax import decaying, with_inverses


def stages(example):
    return row_program(example.program())


def variant(
    top=lambda x, i, k: x[i, k],
    body=lambda x, top, i, j: te.exp(x[i, j] - top[i]),
    extremum=te.max,
    other=None,
    divide=lambda e, total, i, j: e[i, j] / total[i],
):
    """Softmax of 5 rows of 9, with one piece of it changed."""
    x = tensor(5, 9)
    k, k2 = reduced(other or 9, "k"), reduced(9, "k2")
    peak = compute((5,), lambda i: extremum(top(x, i, k), k), "top")
    e = compute((5, 9), lambda i, j: body(x, peak, i, j), "e")
    total = compute((5,), lambda i: te.sum(e[i, k2], k2), "total")
    y = compute((5, 9), lambda i, j: divide(e, total, i, j), "y")
    return Example([x], [y], 1, None)


@pytest.mark.parametrize(
    "example",
    [
        programs.softmax(7, 30),
        programs.softmax(7, 30, masked=True),
        programs.softmax(7, 30, logarithm=True),
        programs.softmax_over_middle(2, 11, 5),
        variant(),
        variant(lambda x, i, k: x[i, k] * 2, lambda x, t, i, j: te.exp(x[i, j] * 2 - t[i])),
    ],
    ids=["plain", "masked", "logarithm", "middle", "own", "doubled"],
)
def test_exponentials_below_the_maximum_are_found(example):
    assert len(decaying(stages(example))) == 1


@pytest.mark.parametrize(
    "example",
    [
        variant(extremum=te.min),
        variant(other=8),
        variant(top=lambda x, i, k: x[i, k] * 2),
        variant(top=lambda x, i, k: x[4 - i, k]),
        variant(body=lambda x, t, i, j: te.exp(t[i] - x[i, j])),
        variant(body=lambda x, t, i, j: te.exp(x[i, j] - t[4 - i])),
        variant(body=lambda x, t, i, j: te.exp(x[i, j] + t[i])),
        variant(body=lambda x, t, i, j: te.exp(x[4 - i, j] - t[i])),
    ],
    ids=["min", "part", "doubled", "top of another", "turned", "another top", "sum", "another row"],
)
def test_other_exponentials_are_left_alone(example):
    program = stages(example)
    assert not decaying(program)
    assert len(with_inverses(program).stages) == len(program.stages)


def test_division_becomes_one_a_row():
    program = with_inverses(stages(programs.softmax(7, 30)))
    assert [stage.name for stage in program.stages][-2:] == ["total_inverse", "y"]
    assert len(with_inverses(stages(programs.softmax(7, 30, logarithm=True))).stages) == 4
    mapped = variant(divide=lambda e, total, i, j: e[i, j] - total[i])
    assert len(with_inverses(stages(mapped)).stages) == 4


def test_what_is_not_proven_may_overflow():
    example = variant(other=8)
    x = np.zeros((5, 9), "float32")
    x[:, 8] = 89.5
    out = tvm.runtime.tensor(np.zeros_like(x))
    build(schedule_rows_cpu(example.program(), cpu_target()))["main"](tvm.runtime.tensor(x), out)
    assert np.isnan(out.numpy()[:, 8]).all()  # infinity over infinity
    np.testing.assert_array_equal(out.numpy()[:, :8], 0)


@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("columns", [1, 3, 64, 67, 200])
def test_rows_of_special_numbers(columns, logarithm):
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((12, columns)).astype("float32")
    x[0] = -np.inf
    x[1, 0], x[2, -1], x[3, columns // 2] = np.nan, np.inf, -np.inf
    x[4], x[5] = 1e-45, 3e38
    x[6] *= 1e30
    x[7] = np.linspace(0, -120, columns)
    x[8, 0] = -3.4e38
    x[9] = np.finfo("float32").min
    x[10] = np.arange(columns) * np.float32(-1e-40)
    example = programs.softmax(12, columns, logarithm=logarithm)
    out = tvm.runtime.tensor(np.full_like(x, 99))
    build(schedule_rows_cpu(example.program(), cpu_target()))["main"](tvm.runtime.tensor(x), out)
    with np.errstate(all="ignore"):
        (expected,) = example.reference(x)
    tiny = np.finfo("float32").tiny
    np.testing.assert_allclose(out.numpy(), expected, rtol=2e-6, atol=2e-6 if logarithm else tiny)
