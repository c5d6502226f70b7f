"""Measure a folder of candidates where the device is; needs numpy, tvm_ffi and TVM's runtime.

    python measure.py                measures what is not measured yet, into records.jsonl
    python measure.py --budget 600   ends in time; the next run goes on from there

    for each task, those with the largest share of the model's time first:
      one process prepares the default, then measures candidate after candidate against it
      a crash, a hang or an error costs the candidate and the process; a spare one goes on
      what is faster than the default is raced again in another process, and the worse counts
    of a question of the planner, the alternatives in turns; what speaks against the first, which
      is what is fused, must do so in two processes

``tvm-fusion tune --export-candidates`` writes the folder; ``tvm-fusion tune --import`` takes the
records where the compiler is. Each line is on the disk as soon as its measurement is known.
"""

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .log import Log, Outcome, text

PARENT = Path(__file__).resolve().parent.parent
PACKAGE = Path(__file__).resolve().parent.name


class Failed(Exception):
    """A measurement raised something, or its process ended; the text says which."""


class TooSlow(Failed):
    """There is no answer within the time."""


class Worker:
    """A process of :mod:`.worker`.

    Attributes
    ----------
    is_ready : bool
        Whether the device can be used, as far as it has said so.
    prepared : int or None
        The task that it has prepared.
    is_used : bool
        Whether it has measured a candidate.
    """

    def __init__(self, folder: Path) -> None:
        self.is_ready, self.is_used = False, False
        self.prepared: int | None = None
        start = f"from {PACKAGE}.worker import main; main({str(folder.resolve())!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start],
            cwd=PARENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until the device can be used.

        Raises
        ------
        Failed
            If it cannot.
        """
        if not self.is_ready:
            self._answer(seconds)
            self.is_ready = True

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises
        ------
        TooSlow
            If there is none in time; the process still runs.
        Failed
            If the answer is an error, or the process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._end()) from None
        return self._answer(seconds)

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # of what was not sent yet
                pipe.close()

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = max(0.0, end - time.monotonic())
            if not _is_readable(descriptor, left):
                raise TooSlow(f"took longer than {seconds:g} seconds")
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise Failed(self._end())
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _end(self) -> str:
        """Say how the process has ended."""
        code = self._process.wait()
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Wait for an answer; ``select.select`` takes no descriptors from 1024 on."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


# The process that measures, seen from outside: time limits, crashes, a spare one behind it.
#
# ask:  the process; ready?  prepare the task in it, if it is another;  measure one candidate
# a crash, an error, a time-out:  kill the process, take the spare one, start another spare
# the budget ends:  kill the process; nothing is written of the candidate


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
        """Measure a candidate against its default, so many times as long as usual."""
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


RESULT = "records.jsonl"
RACED = 3  # candidates of a task, at most
CAREFUL = 3  # times as long as a measurement, for races


def main(folder: Path, arguments: Sequence[str] | None = None) -> int:
    """Measure all tasks of a folder; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds of this run")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds of one candidate")
    parser.add_argument("--seconds", type=float, default=0.06, help="of timing one candidate")
    options = parser.parse_args(arguments)
    data = json.loads((folder / "candidates.json").read_text())
    log = Log(folder / RESULT)
    bench = Bench(folder, data["kind"], options)
    try:
        for number, task in enumerate(data["tasks"]):
            if "question" in task:
                told = compare(bench, log, number, task)
            else:
                told = measure_task(bench, log, number, task, data["gain"])
            if told:
                print(told, flush=True)
    except BudgetSpent:
        print("the budget is spent; run it again for the rest")
    finally:
        bench.close()
        log.close()
    return 0


def measure_task(bench: Bench, log: Log, number: int, task: dict[str, Any], gain: float) -> str:
    """Measure what is not measured of a task, and decide; says what was found, if it is new."""
    key, (default, *others) = task["key"], task["candidates"]
    if log.is_decided(key):
        return ""
    if not log.has(key, default["config"]):
        log.put_trial(task, default["config"], bench.default(number))
    known = log.trials(key)
    default_us = known[text(default["config"])][0]
    tuned = None
    if default_us is not None:
        for place, candidate in enumerate(others, start=1):
            if not log.has(key, candidate["config"]):
                log.put_trial(task, candidate["config"], bench.candidate(number, place))
        tuned = _winner(bench, number, task, known, gain)
        tuned = tuned or [default["config"], default_us, default_us]
    log.decide(task, tuned)
    ok = sum(us is not None for us, _, _ in known.values())
    found = f", {tuned[2] / tuned[1]:.3f}x" if tuned else ""
    return f"{task['title']}: {ok} of {len(known)} measured{found}"


def compare(bench: Bench, log: Log, number: int, task: dict[str, Any]) -> str:
    """Measure the two alternatives of a question; says what they take, if it is new."""
    question = task["question"]
    if log.is_compared(question):
        return ""
    other, first, error = bench.candidate(number, 1, CAREFUL)
    if other is not None and first is not None and other < first:
        bench.change()
        again, base, error = bench.candidate(number, 1, CAREFUL)
        if again is not None and base is not None and base / again < first / other:
            other, first = again, base
    if error or other is None or first is None:
        log.compare(question, [], 0, error)
        return f"{task['title']}: {error}"
    log.compare(question, [first, other], 1, "")
    return f"{task['title']}: {first:.2f} us fused, {other:.2f} us unfused"


def _winner(
    bench: Bench, number: int, task: dict[str, Any], known: dict[str, Outcome], gain: float
) -> list[Any] | None:
    """Race what is faster than the default again, in another process: configuration and times."""
    passed: list[tuple[float, int]] = []
    for place, candidate in enumerate(task["candidates"][1:], start=1):
        us, base, _ = known[text(candidate["config"])]
        if us is not None and base is not None and us < gain * base:
            passed.append((us / base, place))
    if passed:
        bench.change()
    for ratio, place in sorted(passed)[:RACED]:
        us, base, _ = bench.candidate(number, place, CAREFUL)
        if us is None or base is None:
            continue
        worst = max(ratio, us / base)
        if worst < gain:
            return [task["candidates"][place]["config"], base * worst, base]
    return None
