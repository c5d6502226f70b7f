"""Calls from the virtual machine's instrument, and machines that run no CUDA graph."""

import sys
from types import ModuleType

import numpy as np
import pytest
import tvm  # noqa: F401  (has the virtual machine's functions)
import tvm_ffi

from tvm_fusion.deploy.runtime.profile.calls import Instrument, ungraphed
from tvm_fusion.deploy.runtime.profile.clocks import CpuClock
from tvm_fusion.deploy.runtime.profile.ranges import Ranges

RUN_GRAPH = "vm.builtin.cuda_graph.run_or_capture"


class Ticks(CpuClock):
    """A clock that goes on by one with every mark."""

    overhead_us = 0.0

    def __init__(self):
        self.now = 0

    def start(self):
        self.now = 0

    def mark(self):
        self.now += 1
        return self.now

    def read(self, marks):
        return [float(mark) for mark in marks]


def test_a_function_around_kernels_is_no_call():
    instrument = Instrument(Ticks(), Ranges({}))
    kernel = tvm_ffi.convert(lambda: None)
    tensor = tvm_ffi.from_dlpack(np.zeros(3, "float32"))

    def run():
        def call(function, name, inside=lambda: None):
            assert instrument(function, name, True, None, tensor) == 0
            inside()
            assert instrument(function, name, False, None, tensor) == 0

        call(object(), "loop", lambda: (call(kernel, "first"), call(kernel, "second")))
        call(kernel, "third")

    sizes = instrument.sizes(run)
    assert sizes == [("first", 12), ("second", 12), ("third", 12)]
    timed = instrument.timed(run, frozenset(name for name, _ in sizes))
    assert [(c.name, c.start_us, c.us) for c in timed.calls] == [
        ("first", 2.0, 1.0),
        ("second", 4.0, 1.0),
        ("third", 7.0, 1.0),
    ]


def test_sizes_count_a_tensor_once():
    instrument = Instrument(Ticks(), Ranges({}))
    kernel = tvm_ffi.convert(lambda: None)
    x, y = (tvm_ffi.from_dlpack(np.zeros(n, "float32")) for n in (3, 5))

    def run():
        for is_before in (True, False):
            instrument(kernel, "kernel", is_before, None, x, y, x)

    assert instrument.sizes(run) == [("kernel", 4 * (3 + 5))]


def test_functions_of_extents_are_the_hosts():
    instrument = Instrument(Ticks(), Ranges({}))
    function = tvm_ffi.convert(lambda: None)
    heap = tvm_ffi.from_dlpack(np.zeros(4, "int64"))

    def run():
        for name, args in (
            ("compute_symbolic_expr", (2, 3)),
            ("shape_func1", (heap,)),
            ("address", (heap,)),
        ):
            for is_before in (True, False):
                instrument(function, name, is_before, None, *args)

    assert instrument.sizes(run) == []


def test_marks_of_the_machine_itself_tell_what_marks_cost():
    instrument = Instrument(Ticks(), Ranges({}))
    instrument._clock.overhead_us = 5.0

    def run():
        for name in ("vm.builtin.null_value", "kernel"):
            for is_before in (True, False):
                instrument(None, name, is_before, None)

    (call,) = instrument.timed(run, frozenset(["kernel"])).calls
    assert call.us == 0.0  # a tick, less the tick that nothing takes


@pytest.fixture
def override():
    """Register global functions; what was there before comes back."""
    before = {}

    def register(name, function):
        before.setdefault(name, tvm_ffi.get_global_func(name, allow_missing=True))
        tvm_ffi.register_global_func(name, function, override=True)

    yield register
    for name, function in before.items():
        if function is None:
            tvm_ffi.registry.remove_global_func(name)
        else:
            tvm_ffi.register_global_func(name, function, override=True)


def test_graphs_are_run_kernel_by_kernel_inside_only(override):
    called = []
    override(RUN_GRAPH, lambda *_: "graph")
    override("vm.builtin.invoke_closure", lambda *args: called.append(args))
    with ungraphed():
        tvm_ffi.get_global_func(RUN_GRAPH)(1, 2, [3, 4], 0)
    assert called == [(1, 2, 3, 4)]
    assert tvm_ffi.get_global_func(RUN_GRAPH)(1, 2, [3, 4], 0) == "graph"


def test_ranges_of_a_kernels_calls(monkeypatch):
    told = []
    module = ModuleType("nvtx")
    module.push_range = lambda title, domain: told.append(title)
    module.pop_range = lambda domain: told.append("end")
    monkeypatch.setitem(sys.modules, "nvtx", module)
    instrument = Instrument(Ticks(), Ranges({"a": ["/up", "/down"]}))

    def run():
        for name in ("a", "b", "a"):
            for is_before in (True, False):
                instrument(None, name, is_before, None)

    for _ in range(2):
        told.clear()
        instrument.timed(run, frozenset("ab"))
        assert told == ["/up", "end", "b", "end", "/down", "end"]
