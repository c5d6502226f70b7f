"""Worker processes over the cases: a crash or a hang costs one worker, and is recorded."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

# Worker processes start anew after so many samples: torch and TVM keep what they compiled.
_SAMPLES_A_WORKER = 600


@dataclass
class CaseResult:
    """What became of the samples of one operator in one dtype."""

    name: str
    dtype: str
    outcomes: list[dict[str, Any]] = field(default_factory=list)


def sweep(
    cases: Iterable[tuple[str, str]], most: int, workers: int, limit: float
) -> Iterator[CaseResult]:
    """Run cases, in the order in which they end.

    Parameters
    ----------
    cases : iterable of (str, str)
        Operators and dtypes.
    most : int
        Samples a case.
    workers : int
        Processes at a time.
    limit : float
        Seconds a sample; beyond, it is recorded as hanging.
    """
    waiting: Queue[tuple[str, str]] = Queue()
    for case in cases:
        waiting.put(case)
    done: Queue[CaseResult | None] = Queue()
    threads = [
        threading.Thread(target=_serve, args=(waiting, done, most, limit), daemon=True)
        for _ in range(workers)
    ]
    for thread in threads:
        thread.start()
    left = len(threads)
    while left:
        result = done.get()
        if result is None:
            left -= 1
        else:
            yield result


def _serve(waiting: Queue, done: Queue, most: int, limit: float) -> None:
    worker, served = _Worker(limit), 0
    while True:
        try:
            name, dtype = waiting.get_nowait()
        except Empty:
            break
        result, first = CaseResult(name, dtype), -1
        while first is not None:
            outcomes, first = worker.run(name, dtype, most, first)
            result.outcomes += outcomes
            served += len(outcomes)
            if first is not None or served > _SAMPLES_A_WORKER:
                worker.stop()
                worker, served = _Worker(limit), 0
        done.put(result)
    worker.stop()
    done.put(None)


class _Worker:
    """One worker process."""

    def __init__(self, limit: float):
        self._limit = limit
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.operators_torch.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "2"},
        )
        self._rest = b""

    def run(
        self, name: str, dtype: str, most: int, first: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Run a case's samples from ``first`` on; returns where to go on after a death, or None."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {dtype} {most} {first}\n".encode())
        self._process.stdin.flush()
        outcomes: list[dict[str, Any]] = []
        current, limit = first, self._limit + 120  # The first answer waits for imports, too.
        while True:
            line = self._line(limit)
            if line in ("", None):
                died = line == ""
                reason = f"signal or exit {self._process.wait()}" if died else f"{self._limit:g} s"
                outcome = "crash" if died else "hang"
                if current >= 0:  # All samples together are tried before each for itself.
                    outcomes.append({"number": current, "outcome": outcome, "reason": reason})
                return outcomes, current + 1
            answer = json.loads(line)
            limit = self._limit
            if "end" in answer:
                return outcomes, None
            if "start" in answer:
                current = answer["start"]
            else:
                outcomes.append(answer)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _line(self, limit: float) -> str | None:
        """Read a line; empty at the end of the file, None beyond the limit."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], limit)[0]:
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return ""
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()
