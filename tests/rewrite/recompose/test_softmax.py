"""Softmax and log-softmax: ways of writing them, and what is neither."""

import math

import pytest
from tvm.ir import assert_structural_equal

from tests.rewrite.recompose.written import (
    N,
    check,
    check_stays,
    cleaned,
    const,
    module,
    op,
    recomposed,
    tensor,
)

X = tensor(5, 37)


def shifted(x, axis=1, keepdims=True):
    largest = op.max(x, axis, keepdims=keepdims)
    return op.exp(op.subtract(x, largest if keepdims else op.expand_dims(largest, axis)))


def total(e, axis=1):
    return op.sum(e, axis, keepdims=True)


def quotient(x):
    e = shifted(x)
    return op.divide(e, total(e))


def plain(x):
    e = op.exp(x)
    return op.divide(e, total(e))


def by_reciprocal(x):
    e = shifted(x)
    return op.multiply(op.divide(const(1.0), total(e)), e)


def by_power(x):
    e = shifted(x)
    return op.multiply(e, op.power(total(e), const(-1.0)))


def without_keepdims(x):
    e = shifted(x, keepdims=False)
    return op.divide(e, op.reshape(op.sum(e, [1]), (5, 1)))


def negative_axis(x):
    e = shifted(x, axis=-1)
    return op.divide(e, op.sum(e, [-1], keepdims=True))


def shifted_by_sum(x):
    e = op.exp(op.add(op.negative(op.max(x, 1, keepdims=True)), x))
    return op.divide(e, op.broadcast_to(total(e), (5, 37)))


VARIANTS = [
    quotient, by_reciprocal, by_power, without_keepdims, negative_axis, shifted_by_sum,
]  # fmt: skip


@pytest.mark.parametrize("write", VARIANTS)
def test_softmax(write):
    (decision,) = check(write, lambda x: op.nn.softmax(x, 1), X)
    assert (decision.consumer, decision.code) == ("softmax", "recomposed")


@pytest.mark.parametrize("softmax", [op.nn.softmax, op.nn.log_softmax])
def test_a_maximum_that_softmax_subtracts_itself(softmax):
    def write(x):
        return softmax(op.subtract(x, op.max(x, 1, keepdims=True)), 1)

    (decision,) = check(write, lambda x: softmax(x, 1), X)
    assert (decision.consumer, decision.code) == ("shifted_softmax", "recomposed")
    check_stays(lambda x: softmax(op.subtract(x, op.max(x, 0, keepdims=True)), 1), X)
    check_stays(lambda x: softmax(op.subtract(x, op.min(x, 1, keepdims=True)), 1), X)


def test_a_sum_that_may_overflow_takes_a_flag():
    """Of numbers of 88, whose quotients by an infinite sum are 0."""
    (decision,) = check_stays(plain, X)
    assert decision.code == "told_apart"
    check(plain, lambda x: op.nn.softmax(x, 1), X, allow=("reassociate",))


def test_a_logarithm_that_is_asked_about_stays():
    check_stays(lambda x: op.isinf(op.log(op.nn.softmax(x, -1))), X)
    check_stays(lambda x: op.tanh(of_plain_difference(x)), X)


def test_first_axis():
    def write(x):
        e = shifted(x, axis=0)
        return op.divide(e, total(e, 0))

    check(write, lambda x: op.nn.softmax(x, 0), X)


def test_symbolic_rows_and_length():
    check(quotient, lambda x: op.nn.softmax(x, 1), tensor(N, N))


def test_scale_inside_the_shift():
    def write(x):
        scaled = op.multiply(op.subtract(x, op.max(x, 1, keepdims=True)), const(0.125))
        return op.divide(op.exp(scaled), total(op.exp(scaled)))

    check(write, lambda x: op.nn.softmax(op.multiply(x, const(0.125)), 1), X)


def test_shift_by_something_else_stays_inside():
    def write(x, c):
        e = op.exp(op.subtract(x, c))
        return op.divide(e, total(e))

    after = lambda x, c: op.nn.softmax(op.subtract(x, c), 1)  # noqa: E731
    check(write, after, X, X, allow=("reassociate",))


def test_half_type_with_float32_inside():
    def write(x):
        e = shifted(op.astype(x, "float32"))
        return op.astype(op.divide(e, total(e)), "float16")

    def expected(x):
        return op.astype(op.nn.softmax(op.astype(x, "float32"), 1), "float16")

    check(write, expected, tensor(5, 37, dtype="float16"))


def test_guard_for_rows_without_a_finite_element_stays():
    def guarded(softmax):
        return op.where(op.isnan(softmax), const(0.0), softmax)

    check(lambda x: guarded(quotient(x)), lambda x: guarded(op.nn.softmax(x, 1)), X)


def test_exponential_that_is_read_elsewhere_is_still_computed():
    def write(x):
        e = shifted(x)
        return e, op.divide(e, total(e))

    def expected(x):
        return shifted(x), op.nn.softmax(x, 1)

    check(write, expected, X)


def of_both_axes(x):
    e = op.exp(x)
    return op.divide(e, op.sum(e, keepdims=True))


def of_other_tensor(x):
    return op.divide(op.exp(x), total(op.exp(op.negative(x))))


def with_other_base(x):
    e = op.power(const(2.0), x)
    return op.divide(e, total(e))


def with_epsilon(x):
    e = op.exp(x)
    return op.divide(e, op.add(total(e), const(1e-3)))


def with_maximum(x):
    e = op.exp(x)
    return op.divide(e, op.max(e, 1, keepdims=True))


NEAR_MISSES = [of_both_axes, of_other_tensor, with_other_base, with_epsilon]


@pytest.mark.parametrize("write", [*NEAR_MISSES, with_maximum])
def test_near_misses_stay(write):
    check_stays(write, X)


def test_sum_that_is_broadcast_along_the_other_axis_stays():
    def write(x):
        e = op.exp(x)
        return op.divide(e, op.sum(e, 1))  # keepdims off: divides columns by sums of rows

    (decision,) = check_stays(write, tensor(7, 7))
    assert decision.code == "no_such_operator"
    assert "along the same axis" in decision.sentence


def of_difference(x):
    d = op.subtract(x, op.max(x, 1, keepdims=True))
    return op.subtract(d, op.log(total(op.exp(d))))


def of_plain_difference(x):
    return op.subtract(x, op.log(total(op.exp(x))))


def of_log_sum_exp(x):
    largest = op.max(x, 1, keepdims=True)
    log = op.log(total(op.exp(op.subtract(x, largest))))
    return op.subtract(x, op.add(log, largest))


def of_quotient(x):
    return op.log(quotient(x))


def of_operator(x):
    return op.log(op.nn.softmax(x, -1))


@pytest.mark.parametrize(
    "write", [of_difference, of_plain_difference, of_log_sum_exp, of_quotient, of_operator]
)
def test_log_softmax(write):
    check(write, lambda x: op.nn.log_softmax(x, 1), X)


def difference_of_other_tensor(x):
    return op.subtract(x, op.log(total(op.exp(op.negative(x)))))


def of_both_logs(x):
    return op.subtract(op.log(op.abs(x)), op.log(total(op.exp(x))))


def sum_instead(x):
    return op.add(x, op.log(total(op.exp(x))))


@pytest.mark.parametrize("write", [difference_of_other_tensor, sum_instead, of_both_logs])
def test_near_misses_of_log_softmax_stay(write):
    check_stays(write, X)


def of_base_two(x):
    e = op.power(const(2.0), op.subtract(x, op.max(x, 1, keepdims=True)))
    return op.divide(e, total(e))


def of_log2(x):
    e = op.power(const(2.0), op.subtract(x, op.max(x, 1, keepdims=True)))
    return op.subtract(
        op.subtract(x, op.max(x, 1, keepdims=True)), op.divide(op.log(total(e)), const(math.log(2)))
    )


def test_base_two():
    scaled = op.multiply
    check(of_base_two, lambda x: op.nn.softmax(scaled(x, const(math.log(2))), 1), X)
    check(
        of_log2,
        lambda x: scaled(
            op.nn.log_softmax(scaled(x, const(math.log(2))), 1), const(1 / math.log(2))
        ),
        X,
    )
    check(
        lambda x: op.power(const(2.0), of_log2(x)),
        lambda x: op.nn.softmax(scaled(x, const(math.log(2))), 1),
        X,
    )


@pytest.mark.parametrize("write", [of_log_sum_exp, of_difference])
def test_exponential_of_log_softmax(write):
    found, _ = recomposed(module(lambda x: op.exp(write(x)), X))
    assert_structural_equal(found, cleaned(module(lambda x: op.nn.softmax(x, 1), X)))


def test_exponential_of_twice_the_logarithm_stays():
    check(
        lambda x: op.exp(op.multiply(of_log_sum_exp(x), const(2.0))),
        lambda x: op.exp(op.multiply(op.nn.log_softmax(x, 1), const(2.0))),
        X,
    )


def guarded(x, bound=math.inf):
    """As PyTorch writes exp(x - logsumexp(x))."""
    largest = op.max(x, 1, keepdims=True)
    is_infinite = op.equal(op.abs(largest), const(bound))
    largest = op.where(is_infinite, const(0.0), largest)
    log = op.log(total(op.exp(op.subtract(x, largest))))
    return op.exp(op.subtract(x, op.add(log, largest)))


def test_a_guarded_maximum_is_softmax_where_rows_are_summed():
    """Beside an infinity weights are zeros, and softmax's are not."""
    values = tensor(37, 4)
    check(
        lambda x, v: op.matmul(guarded(x), v), lambda x, v: op.matmul(op.nn.softmax(x, 1), v),
        X, values,
    )  # fmt: skip
    check_stays(guarded, X)
    check_stays(lambda x, v: (guarded(x), op.matmul(guarded(x), v)), X, values)
    check_stays(lambda x, v: op.matmul(op.permute_dims(guarded(x)), v), X, tensor(5, 4))
    check_stays(lambda x, v: op.matmul(guarded(x, 3.0), v), X, values)


def late(x, v, e=shifted):
    weights = op.reshape(e(x), (5, 1, 37))
    return op.divide(op.reshape(op.matmul(weights, v), (5, 4)), total(e(x)))


def test_division_behind_the_product():
    values = tensor(37, 4)

    def plain_late(x, v):
        e = op.exp(x)
        return op.divide(op.matmul(e, v), total(e))

    with_moves = tensor(1, 5, 37), values
    check(
        lambda x, v: op.divide(
            op.matmul(op.reshape(shifted(x, 2), (5, 37)), v),
            op.reshape(total(shifted(x, 2), 2), (5, 1)),
        ),
        lambda x, v: op.matmul(op.reshape(op.nn.softmax(x, -1), (5, 37)), v),
        *with_moves,
    )
    check_stays(late, X, values)  # rows of other matrices
    (decision,) = check_stays(plain_late, X, values)
    assert decision.code == "told_apart"
