"""Answers about equal groups, found once: of equal layers, the first one is looked at."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, cast

Answer = TypeVar("Answer")

_answers: ContextVar[dict[Hashable, object] | None] = ContextVar("answers", default=None)


@contextmanager
def remembering_answers(answers: dict[Hashable, object]) -> Iterator[None]:
    """Let :func:`once`, inside of ``with``, look up and keep its answers in a dictionary.

    Parameters
    ----------
    answers
        Keeps the PrimFuncs that are parts of keys alive.
    """
    token = _answers.set(answers)
    try:
        yield
    finally:
        _answers.reset(token)


def once(key: Hashable, compute: Callable[[], Answer]) -> Answer:
    """Return the answer to a question, computed the first time; outside of ``with`` every time.

    Parameters
    ----------
    key
        The question, with the structure that it is about: equal keys, equal answers.
    """
    answers = _answers.get()
    if answers is None:
        return compute()
    if key not in answers:
        answers[key] = compute()
    return cast("Answer", answers[key])
