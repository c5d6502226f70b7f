"""Calls timed in turns."""

import statistics
import time
from collections.abc import Callable, Sequence

ROUNDS = 7
SECONDS = 0.05  # of one turn
WARM = 0.04  # seconds of a turn before: the other library's threads still wait for work, busily


def alternate(runs: Sequence[Callable[[], object]], turns: int = ROUNDS) -> list[float]:
    """Return the seconds of each run: the median over rounds in which all have their turn."""
    for run in runs:
        run()
    rounds: list[list[float]] = [[] for _ in runs]
    for _ in range(turns):
        for run, seconds in zip(runs, rounds, strict=True):
            start = time.perf_counter()
            while time.perf_counter() - start < WARM:
                run()
            times, start = [], time.perf_counter()
            while not times or time.perf_counter() - start < SECONDS:
                begin = time.perf_counter()
                run()
                times.append(time.perf_counter() - begin)
            seconds.append(statistics.median(times))
    return [statistics.median(seconds) for seconds in rounds]
