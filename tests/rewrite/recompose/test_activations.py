"""GELU, SiLU, hard swish and mish: ways of writing them, and what is none of them."""

import math

import pytest
from tvm import tirx

from tests.rewrite.recompose.written import N, check, check_stays, const, op, tensor

X = tensor(5, 37)
HALF, ONE = const(0.5), const(1.0)
ROOT = math.sqrt(2 / math.pi)


def erf(x):
    return op.erf(op.divide(x, const(math.sqrt(2))))


def clip(x, low, high):
    return op.clip(x, tirx.FloatImm("float32", low), tirx.FloatImm("float32", high))


def cubic(x):
    cube = op.power(x, const(3.0))
    return op.multiply(const(ROOT), op.add(x, op.multiply(const(0.044715), cube)))


def cubic_factored(x):
    """``x * (c + c * 0.044715 * x^2)``."""
    square = op.multiply(op.multiply(x, x), const(0.044715 * ROOT))
    return op.multiply(x, op.add(const(ROOT), square))


GELU = {
    "half_first": lambda x: op.multiply(op.multiply(HALF, x), op.add(ONE, erf(x))),
    "half_last": lambda x: op.multiply(op.multiply(x, op.add(erf(x), ONE)), HALF),
    "halved": lambda x: op.divide(op.multiply(x, op.add(erf(x), ONE)), const(2.0)),
    "distributed": lambda x: op.multiply(x, op.add(op.multiply(erf(x), HALF), HALF)),
    "two_terms": lambda x: op.add(op.multiply(HALF, x), op.multiply(HALF * x, erf(x))),
    "by_product": lambda x: op.multiply(
        op.multiply(x, HALF), op.add(op.erf(op.multiply(x, const(math.sqrt(0.5)))), ONE)
    ),
}
GELU_TANH = {
    "power": lambda x: op.multiply(op.multiply(HALF, x), op.add(ONE, op.tanh(cubic(x)))),
    "factored": lambda x: op.multiply(HALF, op.multiply(x, op.tanh(cubic_factored(x)) + ONE)),
    "sigmoid": lambda x: op.multiply(x, op.sigmoid(op.multiply(const(2.0), cubic(x)))),
}
SILU = {
    "sigmoid": lambda x: op.multiply(op.sigmoid(x), x),
    "exponential": lambda x: op.divide(x, op.add(ONE, op.exp(op.negative(x)))),
    "reciprocal": lambda x: op.multiply(x, op.divide(ONE, op.add(op.exp(const(-1.0) * x), ONE))),
    "tanh": lambda x: op.multiply(HALF * x, op.add(ONE, op.tanh(op.multiply(HALF, x)))),
}


@pytest.mark.parametrize("way", GELU)
def test_gelu(way):
    check(GELU[way], op.nn.gelu, X)


@pytest.mark.parametrize("way", GELU_TANH)
def test_gelu_tanh(way):
    check(GELU_TANH[way], op.nn.gelu_tanh, X)


@pytest.mark.parametrize("way", SILU)
def test_silu(way):
    check(SILU[way], op.nn.silu, X)


def test_symbolic_shapes():
    check(GELU["halved"], op.nn.gelu, tensor(N, 37))
    check(SILU["exponential"], op.nn.silu, tensor(3, N))


def test_of_a_sum_and_of_a_product():
    check(lambda x, b: GELU["halved"](op.add(x, b)), lambda x, b: op.nn.gelu(op.add(x, b)), X, X)
    check(
        lambda x, b: SILU["sigmoid"](op.multiply(x, b)),
        lambda x, b: op.nn.silu(op.multiply(x, b)),
        *(X, X),
    )
    check(
        lambda x: GELU["halved"](op.multiply(x, const(3.0))),
        lambda x: op.nn.gelu(op.multiply(x, const(3.0))),
        X,
    )


def test_half_type_with_constants_of_its_own():
    half, one = const(0.5, "float16"), const(1.0, "float16")

    def write(x):
        inner = op.erf(op.multiply(x, const(math.sqrt(0.5), "float16")))
        return op.multiply(op.multiply(half, x), op.add(one, inner))

    check(write, op.nn.gelu, tensor(5, 37, dtype="float16"))


def canonical_hard_swish(x):
    return op.multiply(x, op.multiply(clip(op.add(x, const(3.0)), 0.0, 6.0), const(1 / 6)))


HARD_SWISH = {
    "line": lambda x: op.multiply(x, clip(op.add(op.multiply(x, const(1 / 6)), HALF), 0.0, 1.0)),
    "divided": lambda x: op.divide(op.multiply(x, clip(x + const(3.0), 0.0, 6.0)), const(6.0)),
    "relu6": lambda x: op.multiply(op.divide(op.nn.relu6(x + const(3.0)), const(6.0)), x),
    "limits": lambda x: op.multiply(
        x, op.minimum(const(6.0), op.maximum(x + const(3.0), const(0.0))) / const(6.0)
    ),
    "relu": lambda x: op.multiply(
        x, op.minimum(op.nn.relu(x + const(3.0)), const(6.0)) * const(1 / 6)
    ),
    "canonical": canonical_hard_swish,
}


@pytest.mark.parametrize("way", HARD_SWISH)
def test_hard_swish(way):
    check(HARD_SWISH[way], canonical_hard_swish, X)


def canonical_mish(x):
    two = const(2.0)
    w = op.exp(op.minimum(x, const(20.0)))
    n = op.multiply(w, op.add(w, two))
    return op.multiply(x, op.divide(n, op.add(n, two)))


def softplus(x):
    return op.log(op.add(ONE, op.exp(x)))


def imported_softplus(x, two=2.0):
    """As importers write log1p: near zero by the inverse hyperbolic tangent."""
    w = op.exp(x)
    near = op.multiply(const(two), op.atanh(op.divide(w, op.add(const(2.0), w))))
    return op.where(op.less(op.abs(w), const(0.25)), near, op.log(op.add(ONE, w)))


MISH = {
    "imported": lambda x: op.multiply(x, op.tanh(imported_softplus(x))),
    "log": lambda x: op.multiply(x, op.tanh(softplus(x))),
    "softplus": lambda x: op.multiply(op.tanh(op.nn.softplus(x)), x),
    "guarded": lambda x: op.multiply(
        x, op.tanh(op.where(op.greater(x, const(20.0)), x, softplus(x)))
    ),
}


@pytest.mark.parametrize("way", MISH)
def test_mish(way):
    found = check_once(MISH[way])
    check(canonical_mish, canonical_mish, X)
    assert [d.consumer for d in found if d.verdict == "accepted"] == ["mish"]


def check_once(write):
    return check(write, canonical_mish, X)


def other_cube(x):
    """0.044 instead of 0.044715."""
    cube = op.multiply(const(0.044), op.power(x, const(3.0)))
    inner = op.multiply(const(ROOT), op.add(x, cube))
    return op.multiply(op.multiply(HALF, x), op.add(ONE, op.tanh(inner)))


NEAR_MISSES = {
    "other_cube": other_cube,
    "log1p_times_one_and_a_half": lambda x: op.multiply(x, op.tanh(imported_softplus(x, 3.0))),
    "erf_of_x": lambda x: op.multiply(HALF * x, op.add(ONE, op.erf(x))),
    "not_halved": lambda x: op.multiply(x, op.add(ONE, erf(x))),
    "no_one": lambda x: op.multiply(HALF * x, erf(x)),
    "quick_gelu": lambda x: op.multiply(x, op.sigmoid(op.multiply(const(1.702), x))),
    "sign": lambda x: op.divide(x, op.add(ONE, op.exp(x))),
    "base_two": lambda x: op.divide(x, op.add(ONE, op.power(const(2.0), op.negative(x)))),
    "shifted_clip": lambda x: op.multiply(x, clip(x + const(2.5), 0.0, 6.0) / const(6.0)),
    "high_clip": lambda x: op.multiply(x, clip(x + const(3.0), 0.0, 7.0) / const(6.0)),
    "tanh": lambda x: op.multiply(x, op.tanh(op.log(op.add(const(2.0), op.exp(x))))),
}


@pytest.mark.parametrize("way", NEAR_MISSES)
def test_near_misses_stay(way):
    check_stays(NEAR_MISSES[way], X)


def test_gate_by_another_tensor_stays():
    check_stays(lambda x, y: op.multiply(x, op.sigmoid(y)), X, X)
    check_stays(lambda x, y: op.multiply(op.multiply(HALF, x), op.add(ONE, erf(y))), X, X)


def test_a_near_miss_is_recorded():
    (decision,) = check_stays(NEAR_MISSES["erf_of_x"], X)
    assert decision.sentence == "It does not match gelu: the argument of erf is not a GELU's."


def test_half_precision_tells_the_cube_apart():
    def write(x):
        def half(value):
            return const(value, "float16")

        cube = op.multiply(half(0.044), op.multiply(op.multiply(x, x), x))
        inner = op.multiply(half(ROOT), op.add(x, cube))
        return op.multiply(op.multiply(half(0.5), x), op.add(half(1.0), op.tanh(inner)))

    check_stays(write, tensor(5, 37, dtype="float16"))
