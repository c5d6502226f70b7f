"""Every reason why something is no such operator: a graph that provokes it, and the sentence."""

import pytest
import test_activations as activations
import test_norms as norms
import test_rotary as rotary
import test_softmax as softmax
from test_attention import NEAR_MISSES, build

from tests.rewrite.recompose.written import const, module, op, recomposed, tensor

X, ROWS = tensor(2, 5, 24), tensor(2, 5, 1)
IMAGE = tensor(2, 6, 3, 5)
ATTENTION = {name: build(*NEAR_MISSES[name]) for name in ("transposed", "scaled")}


def spread(x):
    return op.add(op.mean(op.square(x), -1, keepdims=True), const(norms.EPS))


def spread_of_columns(x):
    d = op.subtract(x, op.mean(x, -1))  # keepdims off
    return op.divide(d, op.sqrt(op.add(op.mean(op.square(d), -1), const(norms.EPS))))


def spread_of_deviations(x):
    d = op.subtract(x, op.mean(x, -1, keepdims=True))
    return d, op.rsqrt(spread(d))


def two_scales(x, g, h):
    d, r = spread_of_deviations(x)
    return op.multiply(op.add(op.multiply(d, g), op.multiply(d, h)), r)


def two_shifts(x, b, c):
    d, r = spread_of_deviations(x)
    return op.multiply(op.add(op.add(d, op.divide(b, r)), op.divide(c, r)), r)


def centred_and_not(x):
    return op.multiply(op.subtract(x, op.mean(x, -1, keepdims=True)), op.rsqrt(spread(x)))


def scale_by_row(x, g):
    d, r = spread_of_deviations(x)
    return op.multiply(op.multiply(d, g), r)


def rms_with_shift(x, b):
    return op.multiply(op.add(x, op.multiply(b, op.sqrt(spread(x)))), op.rsqrt(spread(x)))


def rms_scale_by_row(x, g):
    return op.multiply(op.multiply(x, g), op.rsqrt(spread(x)))


def groups(shape, axes, outside=False):
    """Standardized groups of channels, scaled before they are joined again, and behind it."""

    def write(x, *scales):
        parted = op.reshape(x, shape)
        d = op.subtract(parted, op.mean(parted, axes, keepdims=True))
        variance = op.add(op.mean(op.square(d), axes, keepdims=True), const(norms.EPS))
        d = op.multiply(op.multiply(d, scales[0]) if scales else d, op.rsqrt(variance))
        whole = op.reshape(d, (2, 6, 3, 5))
        return op.multiply(whole, scales[1]) if outside else whole

    return write


def log_sum_of_all(x):
    return op.subtract(x, op.log(op.sum(op.exp(x), [0, 1], keepdims=True)))


def rotated(number):
    (mark,) = [m for m in rotary.test_near_misses.pytestmark if m.name == "parametrize"]
    body, types = mark.args[1][number]
    return module(body, *types)


P = softmax.X
CASES = {
    "gelu: the argument of erf is not a GELU's": (activations.NEAR_MISSES["erf_of_x"], P),
    "gelu: erf is not combined with its input as in a GELU": (activations.NEAR_MISSES["no_one"], P),
    "gelu_tanh: the argument of tanh is not a GELU's": (activations.NEAR_MISSES["other_cube"], P),
    "gelu_tanh: tanh is not combined with its input as in a GELU": (
        lambda x: op.multiply(x, op.tanh(activations.cubic(x))), P
    ),
    "softmax: the divisor is not the sum of exponentials": (softmax.of_other_tensor, P),
    "softmax: the sum is over several axes": (softmax.of_both_axes, P),
    "softmax: the exponential is not divided by its sum along the same axis": (
        lambda x: op.divide(op.exp(x), op.sum(op.exp(x), 1)), tensor(7, 7)
    ),
    "late_softmax: the product is not divided by the sums of its rows": (
        lambda x, v: op.divide(op.matmul(softmax.shifted(x), v), op.sum(softmax.shifted(x), 1)),
        *[tensor(7, 7)] * 2,
    ),
    "log_softmax: the sum is over several axes": (log_sum_of_all, P),
    "log_softmax: the logarithm of the sum is not subtracted from the exponent": (
        softmax.sum_instead, P
    ),
    "rms_norm: rows are not divided by their own deviation": (spread_of_columns, tensor(7, 7)),
    "layer_norm: rows are not divided by the root of their variance": (norms.epsilon_outside, X),
    "rms_norm: rows are not divided by the root of their variance": (norms.cube_root, X),
    "layer_norm: rows are not multiplied by one scale": (two_scales, X, *[tensor(24)] * 2),
    "layer_norm: scale or shift are of several tensors": (two_shifts, X, *[tensor(24)] * 2),
    "layer_norm: the value subtracted is not the mean": (norms.not_centred, X),
    "rms_norm: a mean is subtracted": (centred_and_not, X),
    "layer_norm: scale or shift vary along other axes": (scale_by_row, X, ROWS),
    "rms_norm: a shift is added, which an RMS norm does not have": (rms_with_shift, X, tensor(24)),
    "rms_norm: the scale varies along other axes": (rms_scale_by_row, X, ROWS),
    "group_norm: the normalized rows are not groups of channels": (groups((2, 5, 18), [2]), IMAGE),
    "group_norm: scale or shift vary within a channel": (
        groups((2, 3, 30), [2]), IMAGE, tensor(30)
    ),
    "group_norm: scale or shift are applied twice": (
        groups((2, 3, 30), [2], outside=True), IMAGE, tensor(30), tensor(6, 1, 1)
    ),
    "group_norm: scale or shift vary along more than the channel axis": (
        groups((2, 3, 2, 15), [2, 3]), IMAGE, tensor(15)
    ),
    "attention: softmax is not over the axis that the second product reduces": ATTENTION[
        "transposed"
    ],
    "attention: softmax is scaled before the product with the values": ATTENTION["scaled"],
    "rotary: the sign is on the other half": rotated(0),
    "rotary: sine and cosine are exchanged": rotated(1),
    "rotary: the halves are not exchanged with one sign changed": rotated(2),
    "rotary: the elements of a pair are rotated by different angles": rotated(5),
    "rotary: its parts are not rotated by one angle": rotated(7),
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_the_reason_is_recorded(text):
    case = CASES[text]
    mod = module(case[0], *case[1:]) if isinstance(case, tuple) else case
    name, reason = text.split(": ")
    _, log = recomposed(mod)
    told = [d for d in log if d.consumer == name and d.verdict == "refused"]
    assert {d.code for d in told} == {"no_such_operator"}, [d.sentence for d in log]
    assert f"It does not match {name}: {reason}." in {d.sentence for d in told}
