"""Checks every engine against its reference, then times the right ones in interleaved rounds."""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .arrays import relative_error
from .client import EngineError
from .engines import OURS


class Engine(Protocol):
    """What the loop needs of an engine; :class:`~benchmarks.harness.client.Client` is one."""

    def prepare(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Load or compile the model."""

    def outputs(self) -> tuple[dict[str, np.ndarray], float]:
        """Run once; outputs by name, milliseconds."""

    def time(self, warmup: int, runs: int) -> list[float]:
        """Milliseconds of each of ``runs`` runs."""


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    rounds: int = 7  # rounds; in each, every engine has one turn
    # Seconds of timed runs in a turn. An engine slower than that runs once, without warm-up.
    budget: float = 1.0
    slow: float = 3.0  # seconds from which an engine is measured in ``slow_rounds`` rounds only
    slow_rounds: int = 2  # rounds of such an engine
    max_runs: int = 100  # most runs in a turn
    # Seconds of rest before a turn: thread pools of the engine before it spin for a while.
    settle: float = 0.25
    tolerance: float = 1e-4  # largest allowed max|a-b| / max|b| per output


def check(
    engine: Engine,
    job: Mapping[str, Any],
    reference: Mapping[str, np.ndarray],
    settings: Settings,
) -> dict[str, Any]:
    """Prepare an engine, run it once and compare; returns the beginning of its result.

    The ``status`` is ``right``, ``wrong``, ``failed`` or ``unavailable``; only ``right`` is timed.
    """
    try:
        about = engine.prepare(job)
        outputs, ms = engine.outputs()
        # The first run may compile or allocate; a second says better how long a turn will take,
        # but where it may last half a minute it is not worth its time.
        if ms < settings.slow * 1e3:
            ms = engine.time(warmup=0, runs=1)[0]
    except EngineError as error:
        return {"status": error.kind, "reason": str(error)}
    distance, reason = relative_error(outputs, reference)
    result = {
        "status": "right",
        "reason": None,
        "error": distance if np.isfinite(distance) else None,
        "versions": about["versions"],
        "facts": about["facts"],
        "estimate_ms": ms,
    }
    if distance > settings.tolerance:
        result["status"] = "wrong"
        result["reason"] = (
            reason or f"relative error {distance:.1e}; allowed {settings.tolerance:.0e}"
        )
    return result


def turns(names: Sequence[str], rounds: int) -> Iterable[tuple[int, str]]:
    """Yield (round, engine): every engine once a round, each round beginning one engine later."""
    for number in range(rounds):
        first = number % len(names) if names else 0
        for name in (*names[first:], *names[:first]):
            yield number, name


def runs_in_turn(estimate_ms: float, settings: Settings) -> tuple[int, int]:
    """Return (warm-up runs, timed runs) of a turn of an engine with that latency."""
    runs = int(settings.budget * 1e3 / max(estimate_ms, 1e-6))
    if runs <= 1:
        return 0, 1
    return max(1, min(runs, settings.max_runs) // 10), min(runs, settings.max_runs)


def time_interleaved(
    engines: Mapping[str, Engine], results: Mapping[str, dict[str, Any]], settings: Settings
) -> None:
    """Time the engines whose result is ``right``; completes their results in place.

    Adds ``round_ms`` (a round's median, None where the engine had no turn), ``runs`` (timed runs in
    all) and ``latency_ms`` (spread over the rounds). An engine that fails on the way is ``failed``.
    """
    for result in results.values():
        if result["status"] == "right":
            result |= {"round_ms": [None] * settings.rounds, "runs": 0}
    right = [name for name in engines if results[name]["status"] == "right"]
    for number, name in turns(right, settings.rounds):
        result = results[name]
        # The last turn tells more about the next than the one run after the check did.
        latest = [result["estimate_ms"], *(ms for ms in result.get("round_ms", ()) if ms)][-1]
        is_slow = latest > settings.slow * 1e3
        if result["status"] != "right" or (is_slow and number >= settings.slow_rounds):
            continue
        time.sleep(settings.settle)
        warmup, runs = runs_in_turn(latest, settings)
        try:
            ms = engines[name].time(warmup, runs)
        except EngineError as error:
            result |= {"status": "failed", "reason": str(error)}
            continue
        result["round_ms"][number] = _rounded(statistics.median(ms))
        result["runs"] += len(ms)
    for name in right:
        if results[name]["status"] == "right":
            results[name]["latency_ms"] = spread(results[name]["round_ms"])


def spread(values: Iterable[float | None]) -> dict[str, float]:
    """Return min, p25, median, p75 and max of the values that are there."""
    points = {"min": 0, "p25": 25, "median": 50, "p75": 75, "max": 100}
    found = np.percentile([value for value in values if value is not None], list(points.values()))
    return dict(zip(points, map(_rounded, found), strict=True))


def _rounded(value: float) -> float:
    """Keep six digits: more is noise, and makes a file hard to read and to compare."""
    return float(f"{value:.6g}")


def ratios(results: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return, per peer, the spread of ours/peer taken round by round (below 1: ours is faster).

    Both sides of a quotient were measured within the same seconds, so that what slows the machine
    for a while cancels.
    """
    timed = {name: r["round_ms"] for name, r in results.items() if r["status"] == "right"}
    if OURS not in timed:
        return {}
    quotients = {
        name: [a / b for a, b in zip(timed[OURS], peer, strict=True) if a and b]
        for name, peer in timed.items()
        if name != OURS
    }
    return {name: spread(values) for name, values in quotients.items() if values}
