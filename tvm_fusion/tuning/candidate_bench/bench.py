"""The process that measures, seen from outside: time limits, crashes, a spare one behind it.

ask:  the process; ready?  prepare the task in it, if it is another;  measure one candidate
a crash, an error, a time-out:  kill the process, take the spare one, start another spare
the budget ends:  kill the process; nothing is written of the candidate
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from .log import Outcome
from .workers import Failed, TooSlow, Worker

START_SECONDS = 300.0  # until a process is ready


class BudgetSpent(Exception):
    """No time is left for another measurement."""


class Bench:
    """One process that measures, a spare one behind it, and the time that is left.

    Parameters
    ----------
    kind
        Of the device. On a CPU no spare process is started: it would disturb what is timed.
    options
        ``budget``, ``timeout``, ``seconds``.
    """

    def __init__(self, folder: Path, kind: str, options: argparse.Namespace) -> None:
        self._folder, self._has_spare = folder, kind != "llvm"
        self._end = time.monotonic() + options.budget
        self._timeout, self._seconds = options.timeout, options.seconds
        self._worker: Worker | None = None
        self._spare: Worker | None = None

    def default(self, number: int) -> Outcome:
        """Measure a task's default."""
        return self._outcome(number, None)

    def candidate(self, number: int, place: int, times: int = 1) -> Outcome:
        """Measure a candidate beside its default, so many times as long as usual."""
        return self._outcome(number, {"candidate": place, "seconds": times * self._seconds})

    def _outcome(self, number: int, request: dict[str, Any] | None) -> Outcome:
        """Ask once; what fails behind others, which may have spoilt the process, in a fresh one."""
        while True:
            worker = self._ready()
            try:
                if request is None or worker.prepared != number:
                    worker.prepared = None
                    times = self._ask(worker, {"prepare": number})["us"]
                    worker.prepared = number
                if request is not None:
                    times = self._ask(worker, request)["us"]
                    worker.is_used = True
            except Failed as reason:
                self._end_worker()
                if not worker.is_used or isinstance(reason, TooSlow):
                    return None, None, str(reason)
            else:
                us, default_us = times
                return us, default_us, ""

    def change(self) -> None:
        """Let another process measure next: the spare one, which this one becomes."""
        if self._spare is None:
            self._end_worker()
        else:
            self._worker, self._spare = self._spare, self._worker

    def close(self) -> None:
        """End both processes."""
        for worker in (self._worker, self._spare):
            if worker is not None:
                worker.kill()
        self._worker = self._spare = None

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None

    def _ask(self, worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
        """Ask a process within the time-out and the budget, which ends it, too."""
        left = self._left()
        try:
            return worker.ask(request, min(self._timeout, left))
        except TooSlow:
            if left < self._timeout:  # nothing is known of the candidate
                raise BudgetSpent from None
            raise

    def _ready(self) -> Worker:
        """Return the process that measures (the spare one if there is none), once it is ready."""
        self._left()
        if self._worker is None:
            self._worker, self._spare = self._spare or Worker(self._folder), None
        if self._spare is None and self._has_spare:
            self._spare = Worker(self._folder)
        left = self._left()
        try:
            self._worker.wait_until_ready(min(START_SECONDS, left))
        except TooSlow:
            if left < START_SECONDS:
                raise BudgetSpent from None
            raise SystemExit(f"the device was not ready after {START_SECONDS:g} seconds") from None
        except Failed as reason:
            raise SystemExit(f"nothing can be measured here: {reason}") from None
        return self._worker

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise BudgetSpent
        return left
