"""How far a long operation is: stages tell it, whoever wants to show it listens.

Stages call :func:`report` and :func:`steps` and know nothing of terminals; without a listener both
do nothing. :mod:`tvm_fusion.report.progress` shows what is told.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """What is being done."""

    name: str  # for a reader, such as ``fusing operators``
    # Steps; a total of 0 where nobody knows how many there are.
    done: int = 0
    total: int = 0


Listener = Callable[[Stage], None]


class _Told:
    """A listener, and whether a step is under way that tells for all that is inside of it."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.is_inside = listener, False


_told: contextvars.ContextVar[_Told | None] = contextvars.ContextVar("progress", default=None)


def report(name: str, done: int = 0, total: int = 0) -> None:
    """Tell the listener, if there is one, that a stage begins, or how far a tool says it is."""
    told = _told.get()
    if told is not None and not told.is_inside:
        told.listener(Stage(name, done, total))


def steps(name: str, items: Iterable[T]) -> Iterator[T]:
    """Iterate, and tell the listener of each step; stages inside of a step tell nothing.

    Parameters
    ----------
    items
        Taken as a whole before the first step.
    """
    told = _told.get()
    if told is None or told.is_inside:
        yield from items
        return
    every = list(items)
    told.is_inside = True
    try:
        for number, item in enumerate(every):
            told.listener(Stage(name, number, len(every)))
            yield item
    finally:
        told.is_inside = False


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener be told of what happens inside of ``with``."""
    token = _told.set(_Told(listener))
    try:
        yield
    finally:
        _told.reset(token)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Tell nobody of what happens inside of ``with``, such as planning only to compare costs."""
    token = _told.set(None)
    try:
        yield
    finally:
        _told.reset(token)
