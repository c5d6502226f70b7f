"""Unaligned rows: aligned vectors with masked ends, and no access outside of a buffer."""

import re

import numpy as np
import pytest
from nvcc import cuda_source, machine_code, needs_nvcc
from test_rows_gpu import scheduled
from test_rows_vectors import NORMS, TOLERANCE, widths
from tvm import te, tirx

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.row_checks import call, check
from tvm_fusion.schedule.rows.gpu.passes import UnalignedLoop
from tvm_fusion.schedule.rows.gpu.vector_loop import VectorLoop

pytestmark = pytest.mark.slow_beyond(4)

HALVES = ("float16", "bfloat16")
WIDTHS = {"softmax": 8, "layer norm": 2, "RMS norm": 2}  # rows of norms share a scale
HALF = TOLERANCE["float16"]


@pytest.mark.parametrize("n", [17, 127, 129, 1001, 4083, 9707])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", NORMS)
def test_aligned_vectors_cover_rows(case, dtype, n):
    example = NORMS[case](5, n, dtype)
    func = scheduled(example)
    assert widths(func) == [WIDTHS[case]]
    check(example, func, tolerance=TOLERANCE[dtype])


LONG = {
    "longer than registers": programs.softmax(2, 100003, dtype="float16"),
    "several blocks a row": programs.softmax(3, 40001, dtype="bfloat16"),
    "one row": programs.softmax(1, 50257, dtype="float16"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG)
def test_long_rows(case):
    func = scheduled(LONG[case])
    assert widths(func) == [8]
    check(LONG[case], func, tolerance=TOLERANCE["bfloat16"])


def test_any_number_of_rows():
    example = programs.softmax(tirx.Var("m", "int64"), 127, dtype="float16")
    func = scheduled(example)
    assert widths(func) == [8]
    for m in (1, 5, 37):
        check(example, func, {"m": m}, tolerance=HALF)


def test_masked_terms_are_updates_behind_branches():
    """One instruction with a predicate each, where a choice of the term is two or three."""
    text = cuda_source(scheduled(programs.softmax(5, 127, dtype="float16")))
    assert "condval" not in text
    assert " ? " not in text.split("__launch_bounds__", 2)[-1]


# Bounds


@pytest.mark.parametrize("m", range(1, 10))
@pytest.mark.parametrize("case", NORMS)
def test_nothing_outside_is_touched(case, m):
    """Whatever is left of the last vector when the last row ends."""
    example = NORMS[case](m, 127, "float16")
    check(example, scheduled(example), tolerance=HALF)


@pytest.mark.parametrize("n", [17, 63, 129, 9707])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", NORMS)
def test_nothing_outside_rows_of_any_length_is_touched(case, dtype, n):
    example = NORMS[case](3, n, dtype)
    check(example, scheduled(example), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("method", ["_copy", "_write"])
def test_accesses_outside_would_be_noticed(monkeypatch, method):
    monkeypatch.setattr(UnalignedLoop, method, getattr(VectorLoop, method))
    example = programs.softmax(3, 127, dtype="float16")
    name = {"_copy": "x", "_write": "y"}[method]
    with pytest.raises(Exception, match=f"{name}: .* outside"):
        check(example, scheduled(example), tolerance=HALF)


def test_neighbours_do_not_count():
    x = np.random.default_rng(0).standard_normal((3, 129)).astype("float16")
    x[1] = np.nan
    example = programs.softmax(3, 129, dtype="float16")
    _, found = call(scheduled(example), x, x.copy())
    (expected,) = example.reference(x)
    assert np.abs(found - expected)[[0, 2]].max() <= HALF
    assert np.isnan(found[1]).all()


# Other programs


def argmax(m, n):
    """Of numbers below zero, which are not compared with what masks let in."""
    x = programs.tensor(m, n, dtype="float16")
    low = programs.compute((m, n), lambda i, j: x[i, j] - tirx.const(100, "float16"), "low")
    return programs.Example(
        [x], [programs.topi.argmax(low, 1)], 1, lambda x: [(x - x.dtype.type(100)).argmax(1)]
    )


def weighted(m, n):
    """Of weights of a type that has no vectors."""
    x = programs.tensor(m, n, dtype="float16")
    weight = programs.tensor(m, n, dtype="int8", name="weight")
    k = programs.reduced(n, "k")

    def term(i, k):
        return x[i, k].astype("float32") * weight[i, k].astype("float32")

    total = programs.compute((m,), lambda i: te.sum(term(i, k), k), "total")
    y = programs.compute((m, n), lambda i, j: (term(i, j) - total[i]).astype("float16"), "y")

    def reference(x, weight):
        terms = x.astype("float64") * weight
        return [terms - terms.sum(1, keepdims=True)]

    return programs.Example([x, weight], [y], 1, reference)


def heads(m, h, n, shared):
    """Softmax of rows of two axes, to which something is added that heads share, or all do."""
    x = programs.tensor(m, h, n, dtype="float16")
    bias = programs.tensor(*((n,) if shared else (m, n)), dtype="float16", name="bias")
    k = programs.reduced(n, "k")

    def at(i, j, k):
        return x[i, j, k].astype("float32") + bias[(k,) if shared else (i, k)].astype("float32")

    top = programs.compute((m, h), lambda i, j: te.max(at(i, j, k), k), "top")
    y = programs.compute(
        (m, h, n), lambda i, j, c: (at(i, j, c) - top[i, j]).astype("float16"), "y"
    )

    def reference(x, bias):
        x = x.astype("float64") + (bias if shared else bias[:, None])
        return [x - x.max(2, keepdims=True)]

    return programs.Example([x, bias], [y], 2, reference)


def gathered(m, n):
    """Rows that begin where indices say."""
    x = programs.tensor(m, n, dtype="float16")
    rows = programs.tensor(m, dtype="int32", name="rows")
    k = programs.reduced(n, "k")
    top = programs.compute((m,), lambda i: te.max(x[rows[i], k], k), "top")
    y = programs.compute((m, n), lambda i, j: x[rows[i], j] - top[i], "y")

    def reference(x, rows):
        x = x.astype("float64")[rows]
        return [x - x.max(1, keepdims=True)]

    return programs.Example([x, rows], [y], 1, reference)


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (argmax(5, 129), [8]),
        (weighted(5, 129), [8]),
        (heads(2, 3, 129, shared=True), [2]),
        (heads(2, 3, 129, shared=False), []),
        (gathered(5, 129), []),
        (programs.sliced(5, 129, 0, "max", "float16"), [8]),
        (programs.sliced(5, 129, 8, "max", "float16"), [8]),
        (programs.sliced(5, 129, 3, "max", "float16"), []),
        (programs.layer_norm(5, 129, dtype="float16"), [2]),
        (programs.layer_norm(3, 4095, dtype="float16"), [4]),
    ],
)
def test_other_programs(example, expected):
    func = scheduled(example)
    assert widths(func) == expected
    check(example, func, tolerance=8 * HALF)


# Machine code


def test_inner_vectors_are_whole():
    """Only a row's first and last vector have conditions, those of the first and the last step."""
    text = cuda_source(scheduled(programs.softmax(8192, 9707, dtype="float16")))
    assert text.count("*(uint4*)(y_ptr") == 5
    assert text.count("= *(uint4*)(x_ptr") == 5
    assert len(re.findall(r"\by_ptr\[", text)) == 2 * 7  # never all eight
    assert not re.findall(r"\bx_ptr\[", text)  # so many rows end with a whole vector


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_cuda_spills_nothing():
    examples = {
        f"{dtype}_{i}": NORMS[case](8192, 4095, dtype)
        for dtype in HALVES
        for i, case in enumerate(NORMS)
    }
    for one in machine_code({name: scheduled(e) for name, e in examples.items()}).values():
        assert one.stack_bytes == one.spilled_bytes == 0
