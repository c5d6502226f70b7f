"""One group: results compared first, then its variants timed in interleaved rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from tvm_fusion.ecg.work import ASSUMED_DIM, at
from tvm_fusion.report.reference import compare

from . import variants
from .cases import Case

SLOWER = 1.05  # a group slower than its parts by more than this is a loss
_INTEGERS_BELOW = 2  # valid indices of every axis that is indexed


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    rounds: int = 7  # rounds; in each, every variant has one turn
    budget: float = 0.02  # seconds of a turn; at least one run
    tolerance: float = 1e-4  # largest max|a-b| / max|b| of an output
    stock: bool = False  # whether to run the members as stock TVM leaves them, too


def measure(case: Case, target: Target, settings: Settings, seed: int = 0) -> dict[str, Any]:
    """Measure one group of several members.

    Returns
    -------
    dict
        ``status``: ``right``, ``wrong`` or ``failed``, with a ``reason``; ``error``; ``us`` by
        variant; ``ratio``: fused over parts, the median of the rounds' quotients, ``quotients``.
    """
    makers = {"fused": variants.fused, "parts": variants.parts}
    if settings.stock:
        makers["stock"] = variants.stock
    try:
        machines = {
            name: variants.load(make(case, target), target) for name, make in makers.items()
        }
        arguments, expected = _arguments(case, machines["parts"], seed)
        found = {name: outputs(vm, arguments) for name, vm in machines.items() if name != "parts"}
    # guard: recorded as the group's result; whatever one group does, the others are measured
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"status": "failed", "reason": f"{type(error).__name__}: {lines[-1]}"}
    errors = {
        name: max(e["max_rel_error"] for e in compare(values, expected).values())
        for name, values in found.items()
    }
    worst = max(errors.values())
    result: dict[str, Any] = {"error": worst if np.isfinite(worst) else None}
    if not worst <= settings.tolerance:
        name = max(errors, key=errors.__getitem__)
        return result | {"status": "wrong", "reason": f"{name}: relative error {worst:.1e}"}
    timers = {name: timer(vm, arguments) for name, vm in machines.items()}
    timed = interleaved(timers, settings)
    if timed["ratio"] > SLOWER:  # a loss is a claim: it takes more rounds to make it
        timed = interleaved(timers, settings, 3 * settings.rounds)
    return result | {"status": "right", "reason": None} | timed


def interleaved(
    timers: Mapping[str, Callable[[int], float]], settings: Settings, rounds: int | None = None
) -> dict[str, Any]:
    """Time variants in turns; each round begins with another one."""
    counts = {name: _runs(run(1), settings) for name, run in timers.items()}
    samples: dict[str, list[float]] = {name: [] for name in timers}
    names = list(timers)
    for number in range(rounds or settings.rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            samples[name].append(timers[name](counts[name]))
    quotients = [a / b for a, b in zip(samples["fused"], samples["parts"], strict=True)]
    return {
        "us": {name: _rounded(statistics.median(values)) for name, values in samples.items()},
        "ratio": _rounded(statistics.median(quotients)),
        "quotients": [_rounded(q) for q in quotients],
        "runs": counts,
    }


def timer(machine: relax.VirtualMachine, arguments: Sequence[Any]) -> Callable[[int], float]:
    """Return a function from a number of runs to the mean microseconds of one."""

    def run(count: int) -> float:
        evaluate = machine.time_evaluator("main", tvm.cpu(), number=count, repeat=1)
        return evaluate(*arguments).mean * 1e6

    return run


def outputs(machine: relax.VirtualMachine, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
    """Run once; outputs by position."""
    result = machine["main"](*arguments)
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return {str(i): value.numpy() for i, value in enumerate(results)}


def draw(case: Case, seed: int, positive: bool = False) -> list[Any]:
    """Draw what ``main`` takes; symbolic dimensions are at ``ASSUMED_DIM``.

    Floats are normal, or their magnitudes; integers are valid indices of any axis.
    """
    stream = np.random.default_rng(seed)
    drawn: list[Any] = []
    for position, value in enumerate(case.group.inputs):
        if position in case.constants:
            continue
        shape = [at(extent) for extent in value.shape]
        array: Any
        if value.dtype == "bool":
            array = stream.random(shape) < 0.5
        elif "float" in value.dtype:
            array = stream.standard_normal(shape, np.float32)
            array = np.abs(array) if positive else array
        else:
            array = stream.integers(0, _INTEGERS_BELOW, shape)
        drawn.append(tvm.runtime.tensor(np.asarray(array).astype(value.dtype)))
    return [*drawn, *(ASSUMED_DIM for _ in case.group.scalars)]


def _arguments(
    case: Case, machine: relax.VirtualMachine, seed: int
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Draw arguments within the domain of the group's operators, with what its parts make of it."""
    for positive in (False, True):
        arguments = draw(case, seed, positive)
        expected = outputs(machine, arguments)
        if all(np.isfinite(array).all() for array in expected.values()):
            break
    return arguments, expected


def _runs(us: float, settings: Settings) -> int:
    return max(1, int(settings.budget * 1e6 / max(us, 1.0)))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
