"""Measure candidates, one after the other, beside the default of their task.

open the device, say so
prepare:    draw the inputs and weights; call the default, keep its result; time it
candidate:  load; call it where results hold NaN; compare; time both in turns
an error is told; who asks ends this process then, for nothing in it can be relied on
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .clock import Call, Clock
from .tensors import Draw, Runtime, difference

WARM_SECONDS = 0.02  # of a default alone: a GPU's clocks rise meanwhile
_PR_SET_PDEATHSIG = 1


def main(folder: str) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    place = Path(folder)
    data = json.loads((place / "candidates.json").read_text())
    try:
        runtime = Runtime(data["kind"])
        clock = Clock.of(runtime)
    except Exception as error:  # guard: the asking process ends with this sentence
        send({"error": _sentence(error)})
        return
    send({})
    task: Task | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "prepare" in request:
                task = None
                gc.collect()  # its memory, which calls in cycles hold, before the next one's
                task = Task(place, data, data["tasks"][request["prepare"]], runtime, clock)
                us = [task.default_us, task.default_us]
            else:
                assert task is not None
                us = task.measure(request["candidate"], request["seconds"])
            send({"us": us})
        except Exception as error:  # guard: a candidate that fails is a record
            send({"error": _sentence(error)})


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:200]


class _Weight:
    """A weight's equal tensors: calls that are timed together read different ones."""

    def __init__(self, runtime: Runtime, array: np.ndarray) -> None:
        self._runtime, self.array = runtime, array
        self._tensors: list[Any] = []

    def __getitem__(self, number: int) -> Any:
        while len(self._tensors) <= number:
            self._tensors.append(self._runtime.tensor(self.array))
        return self._tensors[number]


class _Loaded(NamedTuple):
    """A library's ``main``, and the weights that it takes behind the inputs."""

    function: Any
    weights: list[_Weight]


class Task:
    """One task's inputs, default and its result.

    Parameters
    ----------
    data, task
        The table of candidates, and the task's part of it.
    """

    def __init__(
        self,
        folder: Path,
        data: dict[str, Any],
        task: dict[str, Any],
        runtime: Runtime,
        clock: Clock,
    ) -> None:
        self._folder, self._runtime, self._clock = folder, runtime, clock
        self._candidates, self._repeats = task["candidates"], task["repeats"]
        self._tolerance: dict[str, float] = task.get("tolerance", data["tolerance"])
        draw = Draw(data["seed"])
        inputs = [draw.input(*one) for one in task["inputs"]]
        self._weights = [_Weight(runtime, draw.weight(*one)) for one in task["weights"]]
        default = self._load(0)  # with the runtime of AMD GPUs, where they are the target
        self._inputs = [runtime.tensor(array) for array in inputs]
        self._expected = self._results(default)
        size = sum(weight.array.nbytes for weight in default.weights)
        self._count = clock.count(self._call(default), size)
        self._default = clock.timed(self._turns(default))
        (us,) = clock.alternate([self._default], WARM_SECONDS)
        self.default_us = us / self._per_turn

    @property
    def _per_turn(self) -> int:
        return self._count * self._repeats

    def measure(self, number: int, seconds: float) -> list[float]:
        """Time a candidate and the default, in microseconds.

        Raises
        ------
        ValueError
            If its results differ from the default's.
        """
        loaded = self._load(number)
        for one, other in zip(self._results(loaded), self._expected, strict=True):
            error, scale = difference(one, other)
            if not error <= self._tolerance.get(str(other.dtype), 0.0) * scale:
                text = f"its results differ from the default's by {error:.3g} of {scale:.3g}"
                raise ValueError(text)
        timed = self._clock.timed(self._turns(loaded))
        times = self._clock.alternate([timed, self._default], seconds)
        return [us / self._per_turn for us in times]

    def _load(self, number: int) -> _Loaded:
        candidate = self._candidates[number]
        library, function = self._runtime.load(self._folder / candidate["file"])
        weights = [self._weight(library, *one) for one in candidate["weights"]]
        return _Loaded(function, weights)

    def _weight(self, library: Any, number: int, pack: str = "", *form: Any) -> _Weight:
        """Return a weight as a library takes it: random, or packed by one of its functions."""
        drawn = self._weights[number]
        if not pack:
            return drawn
        return _Weight(self._runtime, self._runtime.packed(library, pack, drawn.array, *form))

    def _call(self, loaded: _Loaded, number: int = 0) -> Call:
        args = *self._inputs, *(weight[number] for weight in loaded.weights)
        return lambda: loaded.function(*args)

    def _turns(self, loaded: _Loaded) -> list[Call]:
        """Return the calls that are timed in turn: in a model no cache holds the next weights."""
        return [self._call(loaded, number) for number in range(self._count)]

    def _results(self, loaded: _Loaded) -> list[Any]:
        """Call where earlier results lay, which are NaN now: unwritten elements are seen."""
        call = self._call(loaded)
        for _ in range(2):
            for leaf in self._clock.run(call):
                self._runtime.poison(leaf)
        return [self._runtime.array(leaf) for leaf in self._clock.run(call)]
