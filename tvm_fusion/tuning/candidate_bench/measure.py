"""Measure a folder of candidates where the device is; needs numpy, tvm_ffi and TVM's runtime.

    python measure.py                measures what is not measured yet, into records.jsonl
    python measure.py --budget 600   ends in time; the next run goes on from there

    for each task, those with the largest share of the model's time first:
      one process prepares the default, then measures candidate after candidate beside it
      a crash, a hang or an error costs the candidate and the process; a spare one goes on
      what is faster than the default is raced again in another process, and the worse counts
    of a question of the planner, the alternatives in turns; what speaks against the first, which
      is what is fused, must do so in two processes

``tvm-fusion tune --export-candidates`` writes the folder; ``tvm-fusion tune --import`` takes the
records where the compiler is. Each line is on the disk as soon as its measurement is known.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .bench import Bench, BudgetSpent
from .log import Log, Outcome, text

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
