"""Delta debugging: the smallest part of a list that still makes something fail."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest_failing(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Shrink a failing list by halves, then by ever smaller parts.

    The algorithm ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
    Input" (IEEE Transactions on Software Engineering 28, 2002).

    Parameters
    ----------
    fails
        Whether a part of it fails; asked once per part.

    Returns
    -------
    list
        A failing part, in order, from which no single item can be taken away.
    """
    known: dict[tuple[int, ...], bool] = {}

    def is_failing(part: list[int]) -> bool:
        key = tuple(part)
        if key not in known:
            known[key] = fails([items[i] for i in part])
        return known[key]

    left, count = list(range(len(items))), 2
    while len(left) >= 2:
        chunks = [left[i * len(left) // count : (i + 1) * len(left) // count] for i in range(count)]
        rests = [[i for i in left if i not in chunk] for chunk in chunks] if count > 2 else []
        if failing := next((chunk for chunk in chunks if is_failing(chunk)), None):
            left, count = failing, 2
        elif failing := next((rest for rest in rests if is_failing(rest)), None):
            left, count = failing, count - 1
        elif count < len(left):
            count = min(2 * count, len(left))
        else:
            break
    return [items[i] for i in left]
