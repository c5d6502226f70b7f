"""The kernels that one run of a function calls, from the virtual machine's instrument.

The virtual machine tells an instrument of each call before and after it: of kernels, of its own
functions (``vm.builtin...``), and of Relax functions around them. A CUDA graph would be one call;
:func:`ungraphed` makes a machine that launches the kernels of its graphs one by one.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tvm_ffi

from .clocks import Clock
from .ranges import Ranges

# How names of the virtual machine's own functions begin, and of those that launch HIP graphs.
_OWN = ("vm.builtin.", "tvm_fusion.hip_graph.")
# TVM's functions that compute extents on the host, and the one that reads a tensor's address for
# the key of a CUDA graph (``deploy/cuda_graph/static_inputs.py``).
_ON_HOST = re.compile(r"(shape_func|address)\d*(@.*)?")
_RUN_GRAPH = ("vm.builtin.cuda_graph.run_or_capture", "tvm_fusion.hip_graph.run_or_capture")
_override = threading.Lock()


@dataclass(frozen=True)
class Call:
    """One call of a PrimFunc or of a library's function."""

    name: str  # the function's
    # When it began, from the beginning of the run, and how long it took.
    start_us: float
    us: float


@dataclass(frozen=True)
class Run:
    """One run under the clock."""

    calls: tuple[Call, ...]  # of kernels, in order
    us: float  # of the whole run by the host's clock, timing included


class Instrument:
    """Marks the time before and after every call of a virtual machine.

    Parameters
    ----------
    clock
        Whose marks to take.
    ranges
        Where profilers of a vendor are told what runs.
    """

    def __init__(self, clock: Clock, ranges: Ranges) -> None:
        self._clock, self._ranges = clock, ranges
        self._marks: list[tuple[str, bool, int]] = []
        self._sizes: list[tuple[str, bool, int]] | None = None

    def __call__(self, function: Any, name: str, is_before: bool, _result: Any, *args: Any) -> int:
        """Be told of a call by the virtual machine; 0 lets it go on."""
        if self._sizes is not None:
            is_kernel = isinstance(function, tvm_ffi.Function) and not _is_hosts(name)
            self._sizes.append((name, is_before, _bytes(args) if is_kernel else -1))
        elif self._clock.marks_all or not name.startswith(_OWN):
            if is_before:
                self._ranges.push(name)
                self._marks.append((name, True, self._clock.mark()))
            else:
                self._marks.append((name, False, self._clock.mark()))
                self._ranges.pop()
        return 0

    def sizes(self, run: Any) -> list[tuple[str, int]]:
        """Run a function without a clock; names of its kernels with the bytes of their tensors."""
        self._sizes = []
        try:
            run()
            marks = self._sizes
        finally:
            self._sizes = None
        return [(name, size) for name, size in _leaves(marks) if size >= 0]

    def timed(self, run: Any, names: frozenset[str]) -> Run:
        """Run a function under the clock.

        Parameters
        ----------
        run : callable
            Calls the function and waits for its end.
        """
        self._marks = []
        self._ranges.start()
        self._clock.start()
        began = time.perf_counter()
        run()
        whole = (time.perf_counter() - began) * 1e6
        times = self._clock.read([mark for _, _, mark in self._marks])
        timed = [(n, b, t) for (n, b, _), t in zip(self._marks, times, strict=True)]
        pairs = _pairs(timed)
        idle = [end - begin for name, begin, end in pairs if name.startswith(_OWN)]
        overhead = min([*idle, self._clock.overhead_us]) if idle else self._clock.overhead_us
        calls = [
            Call(name, begin, max(end - begin - overhead, 0.0))
            for name, begin, end in pairs
            if name in names
        ]
        return Run(tuple(calls), whole)


def _is_hosts(name: str) -> bool:
    return name.startswith(_OWN) or bool(_ON_HOST.fullmatch(name))


def _leaves(marks: list[tuple[str, bool, int]]) -> list[tuple[str, int]]:
    return [(name, begin) for name, begin, _ in _pairs(marks)]


def _pairs(marks: list[tuple[str, bool, Any]]) -> list[tuple[str, Any, Any]]:
    """List calls that made no calls themselves: both of their marks are next to each other."""
    return [
        (name, begin, end)
        for (name, is_before, begin), (_, is_other_before, end) in pairwise(marks)
        if is_before and not is_other_before
    ]


def _bytes(args: tuple[Any, ...]) -> int:
    """Add up the sizes of different tensors among a call's arguments; -1 where there are none."""
    sizes = {}
    for tensor in args:
        if isinstance(tensor, tvm_ffi.Tensor):
            size = (tensor.dtype.bits * tensor.dtype.lanes + 7) // 8
            for extent in tensor.shape:
                size *= extent
            sizes[tensor.data_ptr()] = size
    return sum(sizes.values()) if sizes else -1  # which computes numbers for the host


@contextmanager
def ungraphed() -> Iterator[None]:
    """Let machines that are made inside of ``with`` launch the kernels of graphs one by one."""
    usual = {name: tvm_ffi.get_global_func(name, allow_missing=True) for name in _RUN_GRAPH}
    usual = {name: function for name, function in usual.items() if function is not None}
    if not usual:
        yield
        return
    invoke = tvm_ffi.get_global_func("vm.builtin.invoke_closure")

    def run(machine: Any, captured: Any, arguments: Any, *_entry: Any) -> Any:
        return invoke(machine, captured, *arguments)

    with _override:
        for name in usual:
            tvm_ffi.register_global_func(name, run, override=True)
        try:
            yield
        finally:
            for name, function in usual.items():
                tvm_ffi.register_global_func(name, function, override=True)
