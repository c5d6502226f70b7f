"""The sweep of half types: its magnitudes, bounds and page, and a fixed subset of its cases."""

import numpy as np
import pytest

from benchmarks.half_sweep import bounds
from benchmarks.half_sweep.case import Case, judge
from benchmarks.half_sweep.magnitudes import HALVES, magnitudes, scaled
from benchmarks.half_sweep.table import bad, load, page, render

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
# Sums of bfloat16 that leave float32's range on the way to a mean within it.
BEYOND_FLOAT32 = frozenset(
    f"torch bfloat16 {name}"
    for name in (
        *("nn.functional.adaptive_avg_pool2d", "nn.functional.avg_pool2d", "std_mean"),
        *("std_mean.unbiased", "var_mean", "var_mean.unbiased"),
    )
)
# Functions composed in Python, scatters, norms, interpolation, roots of variances, places.
TORCH_SUBSET = (
    *("_unsafe_masked_index_put_accumulate", "index_add", "kthvalue", "lgamma", "std"),
    *("nn.functional.local_response_norm", "nn.functional.multilabel_soft_margin_loss"),
    *("nn.functional.interpolate.bilinear", "nn.functional.selu", "nn.functional.tanhshrink"),
    *("nn.functional.scaled_dot_product_attention", "nn.functional.rms_norm", "logsumexp"),
)


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
    page_ = render({"onnx float16 node/norm": found})
    assert "inf instead of" in page_
    assert bad({"onnx float16 node/norm": found})


def test_a_peer_excuses_what_is_no_further_off():
    exact = [np.array([1.0, 2.0, np.nan])]
    near, far = ([np.array([1.0, 2.0 + off, 0.0])] for off in (0.1, 0.5))
    infinite = [np.array([np.inf, 2.0, 0.0])]
    assert not bounds.is_worse(near, near, exact)
    assert bounds.is_worse(far, near, exact)
    assert not bounds.is_worse(near, far, exact)
    assert bounds.is_worse(infinite, far, exact)
    assert not bounds.is_worse(infinite, infinite, exact)


def test_of_equal_elements_any_place_is_right():
    x = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 2.0]])
    found, exact = np.array([2, 0]), np.array([1, 2])
    assert (bounds.among_equals(found, exact, x) == found).all()
    assert (bounds.among_equals(np.array([0, 0]), exact, x) == exact).all()
    assert (bounds.among_equals(found[:, None], exact[:, None], x) == found[:, None]).all()
    assert bounds.among_equals(np.array([3, 0]), exact, x) is not found


def test_the_record_is_clean_and_its_page_is_generated():
    stored = load()
    assert set(bad(stored)) <= BEYOND_FLOAT32
    kinds = {f"{framework} {dtype}" for framework in ("onnx", "torch") for dtype in HALVES}
    assert {" ".join(name.split()[:2]) for name in stored} == kinds
    assert sum(found["outcome"] == "right" for found in stored.values()) > len(stored) / 2 > 25
    assert all(f"| {kind} | " in page() for kind in kinds)


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


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("dtype", HALVES)
def test_a_subset_of_torch_is_right(dtype):
    pytest.importorskip("torch")
    from benchmarks.half_sweep.worker import of_torch

    found = dict(of_torch(list(TORCH_SUBSET), dtype))
    assert {n: each for n, each in found.items() if each["outcome"] != "right"} == {}
