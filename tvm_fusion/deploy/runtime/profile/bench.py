"""Run a function in turns, whole and kernel by kernel."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tvm_ffi

from ..tensors import as_array, copy_to, to_numpy, to_tensor, write_into
from .calls import Call, Instrument, Run, ungraphed
from .clocks import CpuClock, GpuEvents
from .ranges import Ranges

if TYPE_CHECKING:
    from ..executable import Executable
    from ..function import Function

_Measured = TypeVar("_Measured")
_RUNS, _LEAST_SECONDS = 20, 2.0  # timed runs, and more of a short call
_STREAMED, _STREAM_SECONDS = 200, 0.5
_BUFFER_BYTES = 8 << 20
_FORCED = 1  # flush of records that are not whole buffers
_KERNEL = "_kernel"  # behind a PrimFunc's name, in those of its kernels


class Unusable(Exception):
    """Why CUPTI cannot time the kernels here."""


class Recorder:
    """Records of all kernels that run on the device.

    Raises
    ------
    Unusable
        Where the package ``cupti`` is missing, the driver refuses, or the GPU is not NVIDIA's.
    """

    def __init__(self, kind: str) -> None:
        if kind != "cuda":
            raise Unusable("HIP gives the kernels of a graph no times of their own")
        try:
            from cupti import cupti
        except Exception as error:  # guard: told; without a driver it raises what it likes
            reason = _first_line(error)
            raise Unusable(f"the package cupti-python does not load ({reason})") from error
        self._cupti: Any = cupti
        self._kernels: list[Any] = []
        self._call("activity_register_callbacks", lambda: (_BUFFER_BYTES, 0), self._kernels.extend)

    def timed(self, run: Callable[[], None], names: Sequence[str]) -> Run:
        """Run a function and time its kernels.

        Parameters
        ----------
        run
            Calls the function and waits for its end.
        names
            Of the PrimFuncs that it calls, in order.
        """
        kind = self._cupti.ActivityKind.CONCURRENT_KERNEL
        self._kernels.clear()
        self._call("activity_enable", kind)
        try:
            began = self._call("get_timestamp")
            run()
            ended = self._call("get_timestamp")
            self._call("activity_flush_all", _FORCED)
        finally:
            self._call("activity_disable", kind)
        found = [(str(one.name), int(one.start), int(one.end)) for one in self._kernels]
        return Run(tuple(_calls(found, names, began)), (ended - began) / 1e3)

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._cupti, name)(*args)
        except Exception as error:  # guard: told; its exceptions are the extension module's own
            raise Unusable(f"CUPTI's {name} failed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _calls(
    kernels: Sequence[tuple[str, int, int]], names: Sequence[str], began: int
) -> Iterator[Call]:
    """Tell which kernels belong to which call of a PrimFunc.

    A kernel that begins while the one before still runs, as dependent launches do, counts from
    that one's end on: so times add up to those in which the GPU computes.
    """
    counts = Counter(names)
    spans: dict[str, list[tuple[int, int]]] = {name: [] for name in counts}
    end = 0
    for name, start, stop in sorted(kernels, key=lambda kernel: kernel[1]):
        function = name.rpartition(_KERNEL)[0]
        if function in spans:
            spans[function].append((start, max(0, stop - max(start, end))))
        end = max(end, stop)
    called: Counter[str] = Counter()
    for name in names:
        each, left = divmod(len(spans[name]), counts[name])
        if each == 0 or left:
            found = f"{len(spans[name])} kernels in {counts[name]} calls"
            raise Unusable(f"CUPTI recorded {found} of {name}")
        own = spans[name][called[name] * each : (called[name] + 1) * each]
        called[name] += 1
        yield Call(name, (own[0][0] - began) / 1e3, sum(us for _, us in own) / 1e3)


class Bench:
    """A function with its inputs, warmed up.

    On a CPU kernels are timed by the virtual machine's instrument. On an NVIDIA GPU whole calls
    are, with their CUDA graph, by CUPTI; without that and on AMD GPUs, kernels are launched one by
    one between events.

    Parameters
    ----------
    titles
        What to call the NVTX ranges of a kernel's calls.
    warmup
        Whole calls before all others.

    Attributes
    ----------
    sizes : list of (str, int)
        Names of the kernels that a call calls, in order, with the bytes of their tensors.
    clock : str
        How kernels are timed.
    launched_us : float or None
        A whole call that launches its kernels as between events; ``None`` if that is no other.
    streamed_us : float or None
        A call among many that do not wait for each other; ``None`` before :meth:`stream`.
    notes : list of str
        What a reader should know.
    """

    def __init__(
        self,
        executable: Executable,
        inputs: Mapping[str, Any],
        function: str,
        titles: Mapping[str, Sequence[str]],
        warmup: int,
    ) -> None:
        self.on_gpu = executable.device.type != "cpu"
        self._executable, usual = executable, executable.function(function)
        self._inputs = _Inputs(inputs, usual.in_place, executable.device)
        self._usual = usual.bind(self._inputs.bound)
        self.launched_us: float | None = None
        self.streamed_us: float | None = None
        self.notes: list[str] = []
        clock = GpuEvents(executable.device.type) if self.on_gpu else CpuClock()
        self._clock, self.clock = clock, clock.name
        self._instrument = Instrument(clock, Ranges(titles))
        self._name = function
        self._separate = self._instrumented(self._instrument)
        with ungraphed():  # where the virtual machine is made
            self.sizes = self._instrument.sizes(lambda: self._run(self._separate))
        self.names = [name for name, _ in self.sizes]
        for _ in range(max(1, warmup)):
            self.whole()
        self._recorder: Recorder | None = None

    def record(self) -> None:
        """Let a GPU's kernels be timed by CUPTI where it can, or else between events."""
        assert isinstance(self._clock, GpuEvents)
        try:
            self._recorder = Recorder(self._executable.device.type)
            self.timed()
            self.clock = "cupti"
        except Unusable as reason:
            self._recorder = None
            self.launched_us = self._time_launches()
            self.notes.append(f"Kernels are launched one by one, between events: {reason}.")
            self._clock.last(3 * self.launched_us)

    def stream(self) -> None:
        """Time calls that do not wait for each other."""
        begin, count = time.perf_counter(), 0
        while count < _STREAMED and time.perf_counter() - begin < _STREAM_SECONDS:
            self._usual.run(self._inputs.given)
            count += 1
        self._executable.synchronize()
        self.streamed_us = (time.perf_counter() - begin) * 1e6 / count

    def whole(self, function: Function | None = None) -> float:
        """Time a whole call in microseconds, by default as a user calls it."""
        self._restore()
        begin = time.perf_counter()
        self._run(function or self._usual)
        return (time.perf_counter() - begin) * 1e6

    def timed(self) -> Run:
        """Time the kernels of a call."""
        self._restore()
        if self._recorder is not None:
            return self._recorder.timed(lambda: self._run(self._usual), self.names)
        return self._instrument.timed(lambda: self._run(self._separate), frozenset(self.names))

    def extents(self) -> dict[str, int]:
        """Tell the extents of symbolic dimensions."""
        return self._usual.extents(self._inputs.given)

    def _instrumented(self, instrument: Instrument | None) -> Function:
        return self._executable.instrumented(self._name, instrument).bind(self._inputs.bound)

    def _restore(self) -> None:
        if self._inputs.bound:
            self._inputs.restore()
            self._executable.synchronize()

    def _run(self, function: Function) -> None:
        function.run(self._inputs.given)
        self._executable.synchronize()

    def _time_launches(self) -> float:
        launched = self._instrumented(None)
        with ungraphed():
            self.whole(launched)
        return statistics.median(self.whole(launched) for _ in range(5))


class _Inputs:
    """Inputs of every call; what a call writes to is a copy, which has the same values each time.

    Parameters
    ----------
    inputs
        The caller's, which stay as they are.
    in_place
        Names of inputs that a call writes to.
    device
        Where arrays of the host go first, so that calls are timed without that copy.

    Attributes
    ----------
    given : dict of str to array
        What to call a function with that is bound to the others.
    bound : dict of str to array
        The copies: as caches they stay where they are, and a CUDA graph reads them there.
    """

    def __init__(
        self, inputs: Mapping[str, Any], in_place: Collection[str], device: tvm_ffi.Device
    ) -> None:
        self._device = device
        self._written = {name: inputs[name] for name in in_place}
        self.bound = {name: self._copy(array) for name, array in self._written.items()}
        on_gpu = device.type != "cpu"
        self.given = {
            name: to_tensor(array, device) if on_gpu and isinstance(array, np.ndarray) else array
            for name, array in inputs.items()
            if name not in in_place
        }

    def restore(self) -> None:
        """Give the copies the values that they had before any call."""
        for name, array in self._written.items():
            write_into(self.bound[name], array, f"input {name!r}")

    def _copy(self, array: Any) -> Any:
        found = as_array(array, "", "an input")
        if self._device.type != "cpu":
            return (
                to_tensor(found, self._device)
                if isinstance(found, np.ndarray)
                else copy_to(found, self._device)
            )
        return (found if isinstance(found, np.ndarray) else to_numpy(found)).copy()


def timed(bench: Bench, runs: int | None) -> tuple[list[float], list[Run]]:
    """Time whole calls and the kernels of others, by default for a while.

    Returns
    -------
    list of float, list of Run
        Microseconds of whole calls, on a CPU one more than of the others; what kernels took.
    """
    return (_one_after_the_other if bench.on_gpu else _in_turns)(bench, runs)


def _in_turns(bench: Bench, runs: int | None) -> tuple[list[float], list[Run]]:
    """Time whole calls, and between each two of them the kernels of one."""
    ends = [bench.whole()]
    pairs = _repeated(lambda: (bench.timed(), bench.whole()), runs, _LEAST_SECONDS)
    return ends + [end for _, end in pairs], [timing for timing, _ in pairs]


def _one_after_the_other(bench: Bench, runs: int | None) -> tuple[list[float], list[Run]]:
    """Time whole calls, then kernels: from its first record on, CUPTI slows the calls of a GPU."""
    ends = _repeated(bench.whole, runs, _LEAST_SECONDS / 2)
    bench.stream()
    bench.record()
    return ends, _repeated(bench.timed, runs, _LEAST_SECONDS / 2)


def _repeated(
    measure: Callable[[], _Measured], runs: int | None, seconds: float
) -> list[_Measured]:
    """Measure so often, by default for a while as well."""
    found: list[_Measured] = []
    until = time.perf_counter() + seconds
    while len(found) < (runs or _RUNS) or (runs is None and time.perf_counter() < until):
        found.append(measure())
    return found
