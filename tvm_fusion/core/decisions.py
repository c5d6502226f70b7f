"""Decisions are data: every verdict of a stage, with its reason, in one place.

Stages call :func:`record`; whoever wants to know opens :func:`recording` around the pipeline.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..words import few

Verdict = Literal["accepted", "refused", "fallback"]


@dataclass(frozen=True)
class Decision:
    """One verdict and its reason.

    Attributes
    ----------
    producer, consumer
        The operators or kernels that the verdict is about; ``consumer`` is empty when it
        concerns one of them alone.
    verdict : {"accepted", "refused", "fallback"}
        What was decided.
    code
        Stable, machine-readable reason, such as ``schedule_failed``.
    sentence
        The reason for a reader.
    classes
        Classes that the verdict rests on, if any: of the two groups where an edge between them is
        refused, otherwise of the operators.
    bytes_saved
        Bytes of intermediate results that the verdict saves (negative: costs).
    measured_us
        Microseconds measured, where the verdict rests on a measurement.
    through
        Views between the two, which need no kernel.
    producer_names, consumer_names
        The user's names of what the two are made of: see :mod:`.names.source`.
    """

    producer: str
    consumer: str
    verdict: Verdict
    code: str
    sentence: str
    classes: tuple[str, ...] = ()
    bytes_saved: int | None = None
    measured_us: float | None = None
    through: tuple[str, ...] = ()
    producer_names: tuple[str, ...] = ()
    consumer_names: tuple[str, ...] = ()

    @property
    def producer_label(self) -> str:
        """What to call the producer in a line: by the user's names where there are any."""
        return few(self.producer_names) or self.producer

    @property
    def consumer_label(self) -> str:
        """What to call the consumer."""
        return few(self.consumer_names) or self.consumer


_log: contextvars.ContextVar[list[Decision] | None] = contextvars.ContextVar("log", default=None)


def record(decision: Decision) -> None:
    """Append a decision to the log of the innermost :func:`recording`, if there is one."""
    log = _log.get()
    if log is not None:
        log.append(decision)


@contextlib.contextmanager
def naming(names: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Give decisions about functions, inside of ``with``, the user's names of what these compute.

    Parameters
    ----------
    names
        By name of a function. Decisions that have names already keep them.
    """
    log: list[Decision] = []
    try:
        with recording() as log:
            yield
    finally:  # decisions are the reasons of what fails
        for decision in log:
            found = decision.producer_names or names.get(decision.producer, ())
            record(replace(decision, producer_names=found))


@contextlib.contextmanager
def recording() -> Iterator[list[Decision]]:
    """Collect the decisions taken inside the ``with`` block; yields the growing list."""
    log: list[Decision] = []
    token = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(token)
