"""Measure candidates, one after the other, against the default of their task.

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
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

from .tensors import Draw, Runtime, difference

# How calls are timed: on a CPU one by one, on an NVIDIA GPU as CUDA graphs.
#
# CPU   evict the near caches; one call                         the least of some rounds
# CUDA  write through L2; replay a graph of some calls          the median of some rounds
#       captured once; each call with weights of its own, so that they come from memory, while what
#       the kernel before wrote is where it is in a model, too


Call = Callable[[], Any]
LEAST_ROUNDS, MOST_ROUNDS = 7, 60
EVICTED = 4 << 20  # bytes written before calls of a CPU
GRAPH_SECONDS, FIRST_CALLS, MOST_CALLS = 5e-4, 4, 128  # of a CUDA graph
WEIGHT_BYTES = 1 << 30  # of all sets
L2_BYTES = 1 << 27  # more than any GPU's last cache
_RELAXED = 2  # capture mode: memory may be allocated meanwhile
_NON_BLOCKING = 1


class Clock(ABC):
    """Times calls in turns."""

    @staticmethod
    def of(runtime: Runtime) -> Clock:
        """Make the clock of a device."""
        return CudaClock(runtime) if runtime.kind == "cuda" else HostClock(runtime)

    @abstractmethod
    def run(self, call: Call) -> list[Any]:
        """Call once and wait; the tensors of the result."""

    @abstractmethod
    def count(self, call: Call, weight_bytes: int) -> int:
        """Choose how many calls are timed together."""

    @abstractmethod
    def timed(self, calls: Sequence[Call]) -> Call:
        """Make what does calls, one after the other, without the host in between if possible."""

    @abstractmethod
    def once(self, timed: Call) -> float:
        """Time one call of what :meth:`timed` made, in seconds."""

    def alternate(self, sides: Sequence[Call], seconds: float) -> list[float]:
        """Time sides in turns for about so many seconds; microseconds of each."""
        times: list[list[float]] = [[] for _ in sides]
        spent = 0.0
        while len(times[0]) < MOST_ROUNDS and (spent < seconds or len(times[0]) < LEAST_ROUNDS):
            for found, side in zip(times, sides, strict=True):
                found.append(self.once(side))
                spent += found[-1]
        return [1e6 * self._typical(found) for found in times]

    @staticmethod
    def _typical(found: Sequence[float]) -> float:
        return min(found)


class HostClock(Clock):
    """The clock of a CPU, and of GPUs whose streams are not captured here."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._junk = runtime, np.zeros(EVICTED // 4, np.uint32)

    def run(self, call: Call) -> list[Any]:
        """Call once and wait."""
        result = leaves(call())
        self._runtime.wait()
        return result

    def count(self, call: Call, weight_bytes: int) -> int:
        """Time a CPU's calls one by one, and a GPU's some at a time."""
        if self._runtime.device == self._runtime.cpu:
            return 1
        self.run(call)
        begin = time.perf_counter()
        self.run(call)
        return _count(time.perf_counter() - begin, weight_bytes)

    def timed(self, calls: Sequence[Call]) -> Call:
        """Call one after the other."""

        def all_of_them() -> None:
            for call in calls:
                call()

        return all_of_them

    def once(self, timed: Call) -> float:
        """Time one call until the device is done, in seconds."""
        self._junk += 1
        self._runtime.wait()
        begin = time.perf_counter()
        timed()
        self._runtime.wait()
        return time.perf_counter() - begin


class CudaClock(Clock):
    """CUDA graphs and events, by the driver's own interface."""

    def __init__(self, runtime: Runtime) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._runtime = runtime
        self._device = runtime.device
        runtime.tensor(np.zeros(1, "uint8"))  # the primary context becomes this thread's
        self._stream = self._made("cuStreamCreate", _NON_BLOCKING)
        self._events = [self._made("cuEventCreate", 0) for _ in range(2)]
        self._junk = self._made("cuMemAlloc_v2", ctypes.c_size_t(L2_BYTES))

    def run(self, call: Call) -> list[Any]:
        """Call once on the clock's stream and wait."""
        with self._on_stream():
            result = leaves(call())
        self._do("cuCtxSynchronize")
        return result

    def count(self, call: Call, weight_bytes: int) -> int:
        """Choose the calls of a graph by the time of a small one."""
        return _count(self.once(self.timed([call] * FIRST_CALLS)) / FIRST_CALLS, weight_bytes)

    def timed(self, calls: Sequence[Call]) -> Call:
        """Capture calls in a CUDA graph, whose replay is given."""
        for _ in range(2):  # results take turns in memory that is pooled by now
            self._issue(calls[:3])
        self._do("cuCtxSynchronize")
        graph, replayed = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuStreamBeginCapture_v2", self._stream, _RELAXED)
        try:
            self._issue(calls)
        finally:
            self._do("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        flags = ctypes.c_ulonglong(0)
        self._do("cuGraphInstantiateWithFlags", ctypes.byref(replayed), graph, flags)
        self._do("cuGraphDestroy", graph)

        def replay(_read: Sequence[Call] = calls) -> None:  # their tensors stay
            self._do("cuGraphLaunch", replayed, self._stream)

        self.once(replay)
        return replay

    def once(self, timed: Call) -> float:
        """Time one replay with a cold last-level cache, in seconds."""
        self._do("cuMemsetD8Async", self._junk, 0, ctypes.c_size_t(L2_BYTES), self._stream)
        return self._between(timed)

    @staticmethod
    def _typical(found: Sequence[float]) -> float:
        return statistics.median(found)

    def _issue(self, calls: Sequence[Call]) -> None:
        with self._on_stream():
            for call in calls:
                call()

    def _between(self, work: Callable[[], None]) -> float:
        start, end = self._events
        self._do("cuEventRecord", start, self._stream)
        work()
        self._do("cuEventRecord", end, self._stream)
        self._do("cuEventSynchronize", end)
        took = ctypes.c_float()
        self._do("cuEventElapsedTime", ctypes.byref(took), start, end)
        return took.value / 1e3

    def _on_stream(self) -> Any:
        return tvm_ffi.use_raw_stream(self._device, self._stream.value or 0)

    def _made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._do(name, ctypes.byref(made), *arguments)
        return made

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} returned error {code} of CUDA's driver")


def leaves(result: Any) -> list[Any]:
    """List the tensors of a function's result."""
    if hasattr(result, "dtype"):
        return [result]
    return [leaf for part in result for leaf in leaves(part)]


def _count(seconds: float, weight_bytes: int) -> int:
    most = min(MOST_CALLS, WEIGHT_BYTES // max(weight_bytes, 1))
    return max(2, min(most, int(GRAPH_SECONDS / max(seconds, 1e-6))))


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
