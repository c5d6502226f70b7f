"""Clocks of a profile: the CPU's, and events on a GPU's stream."""

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Protocol

import tvm_ffi
from tvm_ffi.core import _env_get_current_stream

from ...._tvm.cuda import load_cudart
from ....device.hip import open_hip

_DELAY_BYTES = 256 << 20  # of one memset: about 0.1 ms on a fast GPU
_MOST_DELAYS = 400
_EVENT_FLAGS = 0  # with times
_MEMSETS = 64  # that tell what events cost


class Clock(Protocol):
    """Takes marks while a function runs, and tells their times afterwards."""

    name: str  # as a reader calls it
    # Whether marks cost so little that functions of the virtual machine itself get some, too.
    marks_all: bool
    overhead_us: float  # what two marks around nothing are apart

    def start(self) -> None:
        """Begin a run."""

    def mark(self) -> int:
        """Mark the present; returns what :meth:`read` takes."""

    def read(self, marks: Sequence[int]) -> list[float]:
        """Tell the marks' times in microseconds from the beginning of the run."""


class CpuClock:
    """The CPU's monotonic clock; kernels run while their call lasts."""

    name = "cpu"
    marks_all = True
    overhead_us = 2.0

    def __init__(self) -> None:
        self._start = 0
        self.mark = time.perf_counter_ns

    def start(self) -> None:
        """Begin a run."""
        self._start = time.perf_counter_ns()

    def read(self, marks: Sequence[int]) -> list[float]:
        """Tell the marks' times in microseconds from the beginning of the run."""
        return [(mark - self._start) / 1e3 for mark in marks]


class GpuEvents:
    """Events on the stream that kernels are launched on.

    An event's time is when the GPU reaches it. A GPU that waits for the next launch would wait
    between two events; so it first gets work that lasts until all kernels are in its queue.
    """

    marks_all = False

    def __init__(self, kind: str) -> None:
        self._gpu = GpuRuntime(kind)
        self.name = f"{self._gpu.prefix} events"
        device_type = tvm_ffi.device(kind, 0).dlpack_device_type()
        self.stream = ctypes.c_void_p(int(_env_get_current_stream(device_type, 0) or 0))
        self._events: list[ctypes.c_void_p] = []
        self._used = 0
        self._delays = 0
        self._delay = self._gpu.allocate(_DELAY_BYTES)
        self.overhead_us = 0.0
        self._delay_us = self._time_delay()
        self.overhead_us = self._time_nothing()

    def __del__(self) -> None:
        gpu = self.__dict__.get("_gpu")
        if gpu is not None:
            for event in self._events:
                gpu.call("EventDestroy", event)
            gpu.call("Free", self._delay)

    def last(self, host_us: float) -> None:
        """Let the GPU be busy for at least this long from the beginning of each run on."""
        self._delays = min(_MOST_DELAYS, int(host_us / self._delay_us) + 2)

    def start(self) -> None:
        """Begin a run; marks before belong to another."""
        self._used = 0
        self._occupy(self._delays)
        self.mark()

    def mark(self) -> int:
        """Record an event behind what was launched so far."""
        if self._used == len(self._events):
            self._events.append(self._gpu.event())
        self._gpu.call("EventRecord", self._events[self._used], self.stream)
        self._used += 1
        return self._used - 1

    def read(self, marks: Sequence[int]) -> list[float]:
        """Tell the marks' times in microseconds from the beginning of the run; waits for them."""
        self._gpu.call("EventSynchronize", self._events[self._used - 1])
        return [self._gpu.elapsed_us(self._events[0], self._events[mark]) for mark in marks]

    def _occupy(self, times: int) -> None:
        for _ in range(times):
            self._memset(_DELAY_BYTES)

    def _memset(self, size: int) -> None:
        self._gpu.call("MemsetAsync", self._delay, 0, ctypes.c_size_t(size), self.stream)

    def _time_delay(self) -> float:
        self._occupy(2)  # the first ones are slower
        self.start()
        self._occupy(8)
        return max(self.read([self.mark()])[0] / 8, 1.0)

    def _time_nothing(self) -> float:
        """Tell by how much events around a kernel, here a memset, put off the next one."""
        self._delays = 16
        between, behind = self._time_memsets(has_events=True), self._time_memsets(has_events=False)
        self._delays = 0
        return max(between - behind, 0.0) / (_MEMSETS - 1)

    def _time_memsets(self, has_events: bool) -> float:
        """Time a row of memsets, with events between them or one at the end, in microseconds."""
        self.start()
        marks = [self.mark()]
        for number in range(_MEMSETS):
            self._memset(4)
            if has_events or number == _MEMSETS - 1:
                marks.append(self.mark())
        times = self.read(marks)
        return times[-1] - times[0]


class GpuRuntime:
    """What a profile calls of CUDA's runtime library or of HIP, which has the same functions.

    Parameters
    ----------
    kind : {"cuda", "rocm"}
        Whose library, which is loaded already.

    Attributes
    ----------
    prefix : str
        Of the names of its functions.
    """

    def __init__(self, kind: str) -> None:
        self.prefix = {"cuda": "cuda", "rocm": "hip"}[kind]
        self._library = load_cudart() if kind == "cuda" else open_hip()

    def call(self, name: str, *args: Any) -> None:
        """Call a function by its name without the prefix; a RuntimeError where it fails."""
        status = getattr(self._library, self.prefix + name)(*args)
        if status:
            raise RuntimeError(f"{self.prefix}{name} failed with error {status}")

    def allocate(self, size: int) -> ctypes.c_void_p:
        """Allocate bytes on the device."""
        pointer = ctypes.c_void_p()
        self.call("Malloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def event(self) -> ctypes.c_void_p:
        """Make an event."""
        event = ctypes.c_void_p()
        self.call("EventCreateWithFlags", ctypes.byref(event), _EVENT_FLAGS)
        return event

    def elapsed_us(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Microseconds between two events that have happened."""
        milliseconds = ctypes.c_float()
        self.call("EventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value * 1e3
