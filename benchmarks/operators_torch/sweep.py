"""Worker processes over the cases: a crash or a hang costs one worker, and is recorded."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks import workers

# Worker processes start anew after so many samples: torch and TVM keep what they compiled.
_SAMPLES_A_WORKER = 600


@dataclass
class CaseResult:
    """What became of the samples of one operator in one dtype."""

    name: str
    dtype: str
    outcomes: list[dict[str, Any]] = field(default_factory=list)


def sweep(
    cases: Iterable[tuple[str, str]], most: int, jobs: int, limit: float
) -> Iterator[CaseResult]:
    """Run cases, in the order in which they end.

    Parameters
    ----------
    jobs
        Processes at a time.
    limit
        Seconds a sample; beyond, it is recorded as hanging.
    """

    def serve(left: Iterator[tuple[str, str]]) -> Iterator[CaseResult]:
        worker, served = _Worker(limit), 0
        for name, dtype in left:
            result, first = CaseResult(name, dtype), -1
            while first is not None:
                outcomes, first = worker.run(name, dtype, most, first)
                result.outcomes += outcomes
                served += len(outcomes)
                if first is not None or served > _SAMPLES_A_WORKER:
                    worker.close()
                    worker, served = _Worker(limit), 0
            yield result
        worker.close()

    yield from workers.gather(cases, jobs, serve)


class _Worker(workers.Worker):
    """One worker process."""

    def __init__(self, limit: float):
        threads = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "2"}
        super().__init__("-m", "benchmarks.operators_torch.worker", environment=threads)
        self._limit = limit

    def run(
        self, name: str, dtype: str, most: int, first: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Run a case's samples from ``first`` on; returns where to go on after a death, or None."""
        self.send(f"{name} {dtype} {most} {first}")
        outcomes: list[dict[str, Any]] = []
        current, limit = first, self._limit + 120  # The first answer waits for imports, too.
        while True:
            line = self.line(limit)
            if not line:
                reason = self.ended() if line == "" else f"{self._limit:g} s"
                outcome = "crash" if line == "" else "hang"
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
