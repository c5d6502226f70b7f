"""Timing: functions in turns, after their results are compared.

Whatever else runs on a machine only adds time, and to all; so minima in turns are compared. In a
model, weights and inputs have seldom been in the near caches a moment before: these are evicted
before each call. Weights of a model that are more than the last cache holds come from memory in
every run: that cache is evicted, too, and then the inputs are read, which the kernels before wrote.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

EVICTED = 4 << 20  # bytes written before each call: the level-2 caches of a few cores
MOST_SWEPT = 64 << 20  # bytes read before each call, for the last cache: 6 ms
#: Error over the largest value that a candidate may differ from the default by: another order of
#: the sums, of thousands of terms.
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Effort:
    """How long a measurement takes."""

    seconds: float = 0.1  # of calls, for each of the two
    # Rounds.
    fewest: int = 4
    most: int = 40
    hopeless: float = 1.3  # ratio above which the rounds end after the fewest
    timeout: float = 60.0  # seconds for building and measuring, after which the process is killed
    # Bytes read before each call, so that the last cache holds no weights; see :func:`swept`.
    swept: int = 0


def swept(weight_bytes: int, cache_bytes: int | None) -> int:
    """Choose what to read before each call of a model's kernels.

    Parameters
    ----------
    cache_bytes
        Of the last cache; ``None`` if it is not known.
    """
    size = (cache_bytes or 0) * 5 // 4
    return size if weight_bytes > size and size <= MOST_SWEPT else 0


def in_turns(
    calls: Sequence[Callable[[], Any]],
    effort: Effort,
    clock: Callable[[], float] = time.perf_counter,
    inputs: Sequence[np.ndarray] = (),
) -> list[float]:
    """Time functions in turns; the minimum of each in microseconds by a clock of seconds.

    Parameters
    ----------
    clock
        Gives seconds.
    inputs
        What the last cache holds, if it is swept.
    """
    junk = np.zeros(EVICTED // 4, "float32")
    last = np.ones(effort.swept // 4, "float32")  # not zeros: one page stands for all of them
    best = [float("inf")] * len(calls)
    spent, rounds = 0.0, 0
    while rounds < effort.most and (rounds < effort.fewest or spent < effort.seconds):
        for number, call in enumerate(calls):
            if last.size:
                last.max()
                for array in inputs:
                    array.max(initial=0)
            junk += 1.0
            begin = clock()
            call()
            took = clock() - begin
            best[number] = min(best[number], took)
        spent += best[-1]
        rounds += 1
        if rounds == effort.fewest and min(best[:-1], default=0.0) > effort.hopeless * best[-1]:
            break
    return [seconds * 1e6 for seconds in best]


def bound(machine: relax.VirtualMachine, function: str, args: Sequence[Any]) -> Callable[[], Any]:
    """Return a call of a virtual machine's function with its arguments bound in place."""
    machine.set_input(function, *args)

    def call() -> Any:
        machine.invoke_stateful(function)
        return machine.get_outputs(function)

    return call


def random_input(generator: np.random.Generator, type_: relax.TensorType) -> np.ndarray:
    """Draw a tensor of a type."""
    return random_array(generator, [int(d) for d in type_.shape.values], str(type_.dtype))


def random_array(generator: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Draw a normally distributed array; integers are zero: an index within every range."""
    kind = np.dtype(dtype)
    if kind.kind in "iub":
        return np.zeros(shape, kind)
    return generator.standard_normal(shape).astype(kind)


def check_same(
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    looser: float = 1.0,
    least: float = 0.0,
) -> None:
    """Compare results with what is expected; a ValueError where they differ.

    Parameters
    ----------
    looser
        Times the tolerance of one kernel.
    least
        Tolerance of floating-point results whose own is less.
    """
    for one, other in zip(actual, expected, strict=True):
        own = TOLERANCE.get(str(other.dtype))
        tolerance = 0.0 if own is None else max(own, least)
        a, b = (x.astype("float64") for x in (one, other))
        finite = np.isfinite(b)
        is_same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
        scale = np.abs(b[finite]).max(initial=0.0)
        error = np.abs(a[finite] - b[finite]).max(initial=0.0)
        if not is_same or not error <= looser * tolerance * scale:
            raise ValueError(f"its results differ from the default's by {error:.3g} of {scale:.3g}")
