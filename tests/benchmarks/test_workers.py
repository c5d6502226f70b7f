"""Threads that serve worker processes."""

import pytest

from benchmarks.workers import gather


def test_every_item_is_served_once():
    assert sorted(gather(range(50), 3, lambda left: (n * n for n in left))) == [
        n * n for n in range(50)
    ]
    assert [*gather([], 2, iter)] == []


def test_what_a_thread_raises_is_raised():
    def serve(left):
        for n in left:
            yield 1 // n

    with pytest.raises(ZeroDivisionError):
        [*gather([1, 0], 1, serve)]
