"""Rows of half-type results on a GPU: what may be loosened, and what must not."""

import pytest
from tvm import te

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.gpu.test_rows_gpu import scheduled
from tests.schedule.rows.row_checks import check


def scaled(m, n, before, after, dtype):
    """``after(exp(x), sum(before(exp(x))))``."""
    x = programs.tensor(m, n, dtype=dtype)
    e = programs.compute((m, n), lambda i, j: te.exp(x[i, j].astype("float32")), "e")
    k = programs.reduced(n, "k")
    total = programs.compute((m,), lambda i: te.sum(before(e[i, k]), k), "total")
    y = programs.compute((m, n), lambda i, j: after(e[i, j], total[i]).astype(dtype), "y")

    def reference(x):
        e = programs.np.exp(x.astype("float64"))
        return [after(e, before(e).sum(1, keepdims=True))]

    return programs.Example([x], [y], 1, reference)


def same(value):
    return value


@pytest.mark.parametrize(
    ("before", "after", "dtype", "is_loose"),
    [
        (same, lambda e, t: e / t, "float16", True),
        (same, lambda e, t: e / (t * 3.0), "bfloat16", True),
        (same, lambda e, t: e / t, "float32", False),  # shown in full
        (same, lambda e, t: e - t * 0.01, "float16", False),  # may cancel
        (same, lambda e, t: e / (t - 1.0), "float16", False),
        (lambda e: e - 1.0, lambda e, t: e / t, "float16", False),
    ],
)
def test_exponentials_that_only_make_ratios(before, after, dtype, is_loose):
    example = scaled(5, 100, before, after, dtype)
    func = scheduled(example)
    assert ("exp2" in func.script()) == is_loose
    tolerance = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}[dtype]
    check(example, func, tolerance=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_softmax_divides_once_a_row(dtype):
    example = programs.softmax(5, 1000, dtype=dtype)
    func = scheduled(example)
    assert func.script().count(" / ") == 1
    assert ("exp2" in func.script()) == (dtype == "float16")
    check(example, func, tolerance={"float16": 2e-3, "float32": 5e-6}[dtype])


def test_log_softmax_is_a_difference():
    assert "exp2" not in scheduled(programs.softmax(5, 100, logarithm=True)).script()


def test_roundings_that_nothing_needs_are_left_out():
    x = programs.tensor(4, 64, dtype="float16")
    k = programs.reduced(64, "k")
    top = programs.compute((4,), lambda i: te.max(x[i, k].astype("float32"), k), "top")

    def element(i, j):
        shifted = (x[i, j].astype("float32") - top[i]).astype("float16")
        return (shifted.astype("float32") * 3.0).astype("float16")

    y = programs.compute((4, 64), element, "y")

    def reference(x):
        x = x.astype("float64")
        return [3 * (x - x.max(1, keepdims=True))]

    example = programs.Example([x], [y], 1, reference)
    func = scheduled(example)
    assert func.script().count('T.Cast("float16"') == 1
    check(example, func, tolerance=1e-3)


def normed(m, n, dtype, shift, out=None):
    """Layer norm of numbers far from 0, without a stage for the mean."""
    x = programs.tensor(m, n, dtype=dtype)

    def far(i, j):
        return x[i, j].astype("float32") + float(shift)

    k, k2 = programs.reduced(n, "k"), programs.reduced(n, "k2")
    total = programs.compute((m,), lambda i: te.sum(far(i, k), k), "total")

    def centred(i, j):
        return far(i, j) - total[i] / float(n)

    squares = programs.compute(
        (m,), lambda i: te.sum(centred(i, k2) * centred(i, k2), k2), "squares"
    )

    def scale(i):
        return te.rsqrt(squares[i] / float(n) + 1e-5)

    y = programs.compute((m, n), lambda i, j: (centred(i, j) * scale(i)).astype(out or dtype), "y")

    def reference(x):
        x = x.astype("float64") + shift
        x = x - x.mean(1, keepdims=True)
        return [x / programs.np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)]

    return programs.Example([x], [y], 1, reference)


@pytest.mark.parametrize("n", [127, 1000, 4096])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_are_taken_away_after_the_scale(n, dtype):
    example = normed(5, n, dtype, 4096)
    text = scheduled(example).script()
    assert " / " not in text
    check(example, scheduled(example), tolerance={"float16": 2e-3, "bfloat16": 1.6e-2}[dtype])


def test_means_stay_where_results_are_shown_in_full():
    example = normed(5, 1000, "float16", 4096, out="float32")
    text = scheduled(example).script()
    assert " / " in text
    check(example, scheduled(example), tolerance=2e-3)
