"""Rows of a table, each made by a process of its own, as far as time goes.

A process that crashes, that hangs, or that is not done in time costs its row; the reason is told.
"""

import itertools
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .workers import Worker, gather

Case = tuple[object, ...]  # the first arguments of a process
NO_TIME = "no time was left"
LONGEST = 86400.0  # seconds; an endless wait is none for select
#: Of processes that run side by side on all cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}


def answered(
    module: str, *arguments: object, end: float, seconds: float = float("inf")
) -> dict[str, Any]:
    """Start a module and return what it answers; under ``wrong``, why it does not.

    Parameters
    ----------
    module, *arguments
        It prints one line of JSON, an object.
    end
        When the process is ended, by the monotonic clock.
    seconds
        How long it may take, if there is as much time.
    """
    seconds = min(seconds, end - time.monotonic(), LONGEST)
    if seconds <= 0:
        return {"wrong": NO_TIME}
    worker = Worker("-m", module, *map(str, arguments), environment=ONE_THREAD)
    try:
        return worker.answer(seconds)
    finally:
        worker.close()


def measured(
    module: str, cases: Iterable[Case], threads: int, at_once: int, end: float, seconds: float
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Measure cases, some side by side on cores of their own; yields them as they are done.

    Parameters
    ----------
    module
        Takes what a case has, the number of threads and the first core.
    cases, threads, at_once
        At most as many at once as there are cores for.
    end, seconds
        As of :func:`answered`.
    """
    cpus = len(os.sched_getaffinity(0))
    at_once = max(1, min(at_once, cpus // threads))
    firsts = itertools.count(0, cpus // at_once)  # far apart: neighbours may be one core

    def serve(left: Iterator[Case]) -> Iterator[tuple[Case, dict[str, Any]]]:
        first = next(firsts)
        for case in left:
            yield case, answered(module, *case, threads, first, end=end, seconds=seconds)

    yield from gather(cases, at_once, serve)
