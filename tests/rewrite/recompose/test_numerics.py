"""An operator is no further from the float64 value than its written-out form."""

import numpy as np
import pytest
import tvm
from test_activations import GELU, GELU_TANH, HARD_SWISH, MISH, SILU
from test_norms import by_moments, norm, rms
from test_softmax import of_quotient, quotient
from tvm import relax
from tvm.target import Target

from tests.rewrite.recompose.written import cleaned, const, module, op, recomposed, tensor

ROWS, COLUMNS = 5, 24


def run(mod, arrays, **pipelines):
    built = tvm.compile(mod, Target("llvm"), **pipelines)
    machine = relax.VirtualMachine(built, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def both(write, *arrays):
    """Results of the operator, and of its written-out form."""
    mod = cleaned(module(write, *(tensor(*a.shape) for a in arrays)))
    found, log = recomposed(mod)
    assert [d.code for d in log] == ["recomposed"]
    ours = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    return run(found, arrays, **ours), run(mod, arrays)


def worst(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


def draw(*shape, scale=1.0, shift=0.0):
    values = np.random.default_rng(len(shape)).standard_normal(shape) * scale + shift
    return values.astype("float32")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def standardized(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def check_no_worse(write, reference, *arrays, bound=2e-6):
    found, written_out = both(write, *arrays)
    expected = reference(*(a.astype("float64") for a in arrays))
    assert worst(found, expected) <= max(bound, 1.5 * worst(written_out, expected))


def test_softmax_of_large_magnitudes_and_masked_rows():
    x = draw(ROWS, 37, scale=1e4)
    x[1, 5:] = -np.inf
    x[2] = 3e38
    check_no_worse(quotient, softmax, x)


def test_log_softmax_of_small_quotients():
    x = draw(ROWS, 37, scale=40.0)
    found, _ = both(of_quotient, x)
    wide = x.astype("float64")
    expected = wide - wide.max(-1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(-1, keepdims=True))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_guard_keeps_its_zeros_on_a_row_without_a_finite_element():
    def guarded(x):
        found = quotient(x)
        return op.where(op.isnan(found), const(0.0), found)

    x = draw(ROWS, 37)
    x[3] = -np.inf
    found, _ = both(guarded, x)
    assert (found[3] == 0).all()
    np.testing.assert_allclose(found[:3], softmax(x[:3].astype("float64")), rtol=1e-5)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e4, 0.0), (1.0, 300.0)])
def test_layer_norm(scale, shift):
    x = draw(2, ROWS, COLUMNS, scale=scale, shift=shift)
    check_no_worse(norm, standardized, x, bound=1e-6 * (1 + abs(shift)))


@pytest.mark.slow
def test_layer_norm_by_moments_is_more_accurate_than_they_are():
    x, g, b = draw(2, ROWS, COLUMNS, shift=1e3), draw(COLUMNS), draw(COLUMNS)
    found, written_out = both(by_moments, x, g, b)
    expected = standardized(x.astype("float64")) * g + b
    assert worst(found, expected) < 1e-4 < worst(written_out, expected)


def test_rms_norm():
    def reference(x, g):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g

    check_no_worse(rms, reference, draw(2, ROWS, COLUMNS, scale=1e4), draw(COLUMNS))


def erf(x):
    from math import erf

    return np.vectorize(erf)(x)


def hard_swish(x):
    return x * np.clip(x + 3, 0, 6) / 6


def mish(x):
    return x * np.tanh(np.logaddexp(0, x))


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("write", "reference"),
    [
        (GELU["halved"], lambda x: x / 2 * (1 + erf(x / np.sqrt(2)))),
        (GELU_TANH["factored"], gelu_tanh),
        (SILU["exponential"], lambda x: x / (1 + np.exp(-x))),
        (HARD_SWISH["divided"], hard_swish),
        (MISH["log"], mish),
    ],
)
@pytest.mark.slow
def test_activations(write, reference):
    x = np.concatenate([draw(3, 37), draw(3, 37, scale=30.0)])
    check_no_worse(write, reference, x)


def test_mish_of_small_exponentials_keeps_its_digits():
    x = np.linspace(-40, 40, 5 * 37, dtype="float32").reshape(5, 37)
    found, written_out = both(MISH["log"], x)
    expected = mish(x.astype("float64"))
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    assert (written_out[x < -17] == 0).all()  # 1 + exp(x) is 1


def test_hard_swish_of_the_largest_numbers_is_finite():
    x = np.full((ROWS, 37), 3e38, "float32")
    found, written_out = both(HARD_SWISH["divided"], x)
    np.testing.assert_allclose(found, x)
    assert np.isinf(written_out).all()
