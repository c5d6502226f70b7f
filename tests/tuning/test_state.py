"""What trials are given by: the time of a task over the roofline of all of them."""

from types import SimpleNamespace

import pytest

from tvm_fusion.tuning.state import LEAST, PATIENCE, State, TaskState


def task(calls, us, mflop, kib=1.0, ratio=1.0, idle=0, is_over=False):
    """A task of a group with one operator."""
    operator = SimpleNamespace(flops=1e6 * mflop)
    claim = SimpleNamespace(group=SimpleNamespace(members=(operator,)), bytes=1024 * kib)
    state = TaskState(
        SimpleNamespace(calls=calls, claim=claim), SimpleNamespace(is_over=is_over), us
    )
    state.ratio, state.idle = ratio, idle
    return state


def weights(*tasks):
    return State(list(tasks)).weights()


def test_what_is_as_fast_as_the_best_is_worth_least():
    """BERT: nine tenths of the time are products at the peak; attention is at half of it."""
    products, attention, copies = task(12, 1200, 600), task(12, 190, 50), task(24, 10, 0.1, 500)
    found = weights(products, attention, copies)
    assert found[0] == pytest.approx(LEAST * 12 * 1200)
    assert found[1] == pytest.approx(12 * (190 - 100))
    assert found[2] == pytest.approx(LEAST * 24 * 10)  # it sets the bandwidth
    assert max(found) == found[1]


def test_traffic_bounds_what_multiplies_little():
    slow, copies = task(1, 100, 0.1, 500), task(1, 10, 0.1, 100)
    assert weights(slow, copies, task(1, 100, 600))[0] == pytest.approx(50)


def test_what_was_gained_is_no_longer_to_be_gained():
    best = task(1, 100, 100)
    assert weights(best, task(1, 400, 100))[1] == pytest.approx(300)
    assert weights(best, task(1, 400, 100, ratio=0.5))[1] == pytest.approx(100)
    assert weights(best, task(1, 400, 100, idle=2))[1] == pytest.approx(300 * PATIENCE**2)


def test_nothing_is_worth_what_cannot_be_tried():
    assert weights(task(1, 100, 100, is_over=True), task(1, 0.0, 100)) == [0.0, 0.0]
    assert weights() == []


def test_groups_without_arithmetic():
    assert weights(task(1, 100, 0), task(2, 100, 0)) == pytest.approx([5.0, 10.0])
