"""Run a function in turns, whole and kernel by kernel."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from ..tensors import as_array, copy_to, to_numpy, to_tensor
from .calls import Call, Instrument, Run, ungraphed
from .clocks import CpuClock, GpuEvents
from .ranges import Ranges

if TYPE_CHECKING:
    from ..executable import Executable
    from ..function import Function

_BUFFER_BYTES = 8 << 20
_FORCED = 1  # flush of records that are not whole buffers
_KERNEL = "_kernel"  # behind a PrimFunc's name, in those of its kernels


class Unusable(Exception):
    """Why CUPTI cannot time the kernels here."""


class Recorder:
    """Records of all kernels that run on the device.

    Parameters
    ----------
    kind : {"cuda", "rocm"}
        Of the device.

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
        self._executable, self._usual = executable, executable.function(function)
        self._inputs = _Inputs(inputs, self._usual.in_place, executable.device)
        self.launched_us: float | None = None
        self.notes: list[str] = []
        kind = executable.device.type
        clock = GpuEvents(kind) if self.on_gpu else CpuClock()
        self.clock = clock.name
        self._instrument = Instrument(clock, Ranges(titles))
        self._separate = executable.instrumented(function, self._instrument)
        with ungraphed():  # where the virtual machine is made
            arguments = self._inputs.fresh()
            self.sizes = self._instrument.sizes(lambda: self._run(self._separate, arguments))
        self.names = [name for name, _ in self.sizes]
        for _ in range(max(1, warmup)):
            self.whole()
        self._recorder: Recorder | None = None
        if isinstance(clock, GpuEvents):
            try:
                self._recorder = Recorder(kind)
                self.timed()
                self.clock = "cupti"
            except Unusable as reason:
                self._recorder = None
                self.launched_us = self._time_launches(function)
                self.notes.append(f"Kernels are launched one by one, between events: {reason}.")
                clock.last(3 * self.launched_us)

    def whole(self, function: Function | None = None) -> float:
        """Time a whole call in microseconds, by default as a user calls it."""
        arguments = self._inputs.fresh()
        begin = time.perf_counter()
        self._run(function or self._usual, arguments)
        return (time.perf_counter() - begin) * 1e6

    def timed(self) -> Run:
        """Time the kernels of a call."""
        arguments = self._inputs.fresh()
        if self._recorder is not None:
            return self._recorder.timed(lambda: self._run(self._usual, arguments), self.names)
        known = frozenset(self.names)
        return self._instrument.timed(lambda: self._run(self._separate, arguments), known)

    def extents(self) -> dict[str, int]:
        """Tell the extents of symbolic dimensions."""
        return self._usual.extents(self._inputs.fresh())

    def _run(self, function: Function, arguments: Mapping[str, Any]) -> None:
        function.run(arguments)
        self._executable.synchronize()

    def _time_launches(self, name: str) -> float:
        launched = self._executable.instrumented(name, None)
        with ungraphed():
            self.whole(launched)
        return statistics.median(self.whole(launched) for _ in range(5))


class _Inputs:
    """Inputs of every call: those that a call writes to are copied anew for each.

    Parameters
    ----------
    inputs
        The caller's, which stay as they are.
    in_place
        Names of inputs that a call writes to.
    device
        Where arrays of the host go first, so that calls are timed without that copy.
    """

    def __init__(
        self, inputs: Mapping[str, Any], in_place: Collection[str], device: tvm_ffi.Device
    ) -> None:
        self._in_place, self._device = in_place, device
        on_gpu = device.type != "cpu"
        self._arrays = {
            name: to_tensor(array, device) if on_gpu and isinstance(array, np.ndarray) else array
            for name, array in inputs.items()
        }

    def fresh(self) -> dict[str, Any]:
        """Return what to call the function with."""
        return {
            name: self._copy(array) if name in self._in_place else array
            for name, array in self._arrays.items()
        }

    def _copy(self, array: Any) -> Any:
        found = as_array(array, "", "an input")
        if isinstance(found, np.ndarray):
            return found.copy()
        return (
            to_numpy(found).copy() if self._device.type == "cpu" else copy_to(found, self._device)
        )
