"""The sweep of half types: its magnitudes, bounds and page, and a fixed subset of its cases."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.half_sweep import bounds
from benchmarks.half_sweep.case import Case, judge
from benchmarks.half_sweep.magnitudes import HALVES, magnitudes, scaled
from benchmarks.half_sweep.table import bad, page

F16 = np.float16
# Of each kind that was wrong once: sums and squares, windows, logarithms, interpolation, products.
SUBSET = (
    *("node/affine_grid_2d", "node/batchnorm_epsilon", "node/einsum_batch_matmul"),
    *("node/gridsample_aligncorners_true", "node/group_normalization_epsilon"),
    *("node/lppool_2d_dilations", "node/lrn", "node/reduce_l2_default_axes_keepdims_example"),
    *("node/reduce_log_sum_default", "node/rnn_seq_length", "node/rotary_embedding"),
    *("node/softplus", "node/sum_example", "node/swish", "node/tanh_example"),
)


def case_of(run, exact, inputs, is_half, peer=None):
    return Case("c", "float16", inputs, is_half, lambda: run, dict.fromkeys(WIDE, exact), peer)


WIDE = ("float64", "float32")


@pytest.mark.parametrize("dtype", HALVES)
def test_magnitudes_reach_the_limits(dtype):
    sizes, x = magnitudes(dtype), np.array([0.5, -2.0, 1.0])
    given = dict(scaled([x, x, np.arange(3)], dtype, [True, True, False]))
    assert set(given) == {"as drawn", *sizes, *(f"{name}, first" for name in sizes)}
    for name, size in sizes.items():
        first, second, third = given[name]
        assert np.abs(first.astype(float)).max() == pytest.approx(size, rel=2**-8)
        assert (first == second).all()
        assert third.dtype.kind == "i"
        assert (given[f"{name}, first"][1] == x.astype(HALVES[dtype])).all()
    assert (np.abs(given["subnormal"][0].astype(float)) > 0).all()


def test_rounding_is_right_and_more_is_wrong():
    exact = np.array([1.0, 300.5, 1e-7, 7e4])
    one = exact.astype("f4")
    with np.errstate(over="ignore"):
        rounded = exact.astype(F16)
    assert bounds.difference([rounded], [exact], [one]) == ("", "")
    off = rounded.copy()
    off[1] += F16(1.0)
    assert "301.5 instead of 300.5" in bounds.difference([off], [exact], [one])[0]
    infinite = rounded.copy()
    infinite[0] = np.inf
    assert "1 of 4, inf instead of 1" in bounds.difference([infinite], [exact], [one])[0]
    assert bounds.difference([infinite], [exact], [np.array([np.inf, *one[1:]])])[1]
    assert "results" in bounds.difference([], [exact], [one])[0]
    assert "shape" in bounds.difference([rounded[:1]], [exact], [one])[0]
    whole = np.arange(3)
    assert not bounds.difference([whole], [whole], [whole])[0]
    assert "differ" in bounds.difference([whole + 1], [whole], [whole])[0]


def test_an_operator_that_squares_in_its_own_type_is_found():
    x = np.linspace(0.5, 2, 7)

    def norm(inputs):
        return [np.sqrt((inputs[0] * inputs[0]).sum())]

    def careful(inputs):
        return [norm([inputs[0].astype("f4")])[0].astype(F16)]

    with np.errstate(over="ignore", under="ignore"):
        assert judge(case_of(careful, norm, [x], [True]), careful)["outcome"] == "right"
        found = judge(case_of(norm, norm, [x], [True]), norm)
        assert found["outcome"] == "wrong"
        assert {"1e4", "1e-4", "subnormal"} <= set(found["wrong"])
        assert judge(case_of(norm, norm, [x], [True], norm), norm)["outcome"] == "as peer"
    page_ = page({"onnx float16 node/norm": found})
    assert "inf instead of" in page_
    assert bad({"onnx float16 node/norm": found})


def test_the_record_is_clean_and_its_page_is_generated():
    from benchmarks.half_sweep import __main__ as command

    stored = command.load()
    assert not bad(stored)
    assert all(found["outcome"] in ("right", "as peer", "refused") for found in stored.values())
    assert sum(found["outcome"] == "right" for found in stored.values()) > len(stored) / 2 > 25
    assert (command.HERE / "README.md").read_text() == page(stored)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
def test_a_subset_is_right(dtype):
    from benchmarks.half_sweep import onnx_cases
    from benchmarks.half_sweep.worker import of_onnx

    names = set(onnx_cases.names(10))
    found = dict(of_onnx([name for name in SUBSET if name in names], dtype))
    assert sum(each["outcome"] == "right" for each in found.values()) >= len(SUBSET) // 2
    wrong = {name: each for name, each in found.items() if each["outcome"] in ("wrong", "crash")}
    assert not wrong
