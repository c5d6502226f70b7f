"""Closures of parallel loops begin with the number of trips."""

import ctypes

import numpy as np
import tvm
from tvm.script import tirx as T

from tvm_fusion.device import parse
from tvm_fusion.lower.cpu import ParallelTrips
from tvm_fusion.pipeline import tir_pipeline  # noqa: F401  (registers the pipeline)

BODY = ctypes.c_void_p
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, BODY, ctypes.POINTER(ctypes.c_int64), ctypes.c_int)


@T.prim_func(s_tir=True)
def static(x: T.Buffer((96, 8), "float32"), y: T.Buffer((96, 8), "float32")):
    with T.sblock("root"):
        for i in T.parallel(96):
            for j in range(8):
                y[i, j] = x[i, j] + x[95 - i, j]
        for i in T.parallel(T.int64(24)):
            for j in range(8):
                y[i, j] = y[i, j] * T.float32(2)


@T.prim_func(s_tir=True)
def symbolic(x_handle: T.handle, y_handle: T.handle):
    n = T.int64()
    x = T.match_buffer(x_handle, (n, T.int64(3)), "float32")
    y = T.match_buffer(y_handle, (n, T.int64(3)), "float32")
    with T.sblock("root"):
        for i in T.parallel(n * T.int64(3)):
            y[i // T.int64(3), i % T.int64(3)] = T.float32(2) * x[i // T.int64(3), i % T.int64(3)]


def trips(func, folder, *arrays):
    """Run a function; list what its launcher finds at the beginning of closures."""
    func = func.with_attrs({"global_symbol": "main", "tirx.is_scheduled": True})
    target = parse("cpu").tvm_target()
    path = str(folder / "main.so")
    tvm.tirx.build(tvm.IRModule({"main": func}), target, pipeline="tvm_fusion").export_library(path)
    module = tvm.runtime.load_module(path)
    slot = ctypes.c_void_p.in_dll(ctypes.CDLL(path), "__TVMBackendParallelLaunch")
    launch, found = LAUNCH(slot.value), []

    def noted(body, closure, parts):
        found.append(closure[0])
        return launch(body, closure, parts)

    kept = LAUNCH(noted)
    slot.value = ctypes.cast(kept, ctypes.c_void_p).value
    module["main"](*arrays)
    return found


def test_loops_of_both_index_types(tmp_path):
    x = np.random.default_rng().standard_normal((96, 8), "float32")
    y = np.empty_like(x)
    assert trips(static, tmp_path, x, y) == [96, 24]
    expected = x + x[::-1]
    expected[:24] *= 2
    np.testing.assert_array_equal(y, expected)


def test_symbolic_trips(tmp_path):
    x = np.random.default_rng().standard_normal((21, 3), "float32")
    y = np.empty_like(x)
    assert trips(symbolic, tmp_path, x, y) == [63]
    np.testing.assert_array_equal(y, x + x)


def test_twice_is_once():
    for func in (static, symbolic):
        once = ParallelTrips()(tvm.IRModule({"main": func}))
        tvm.ir.assert_structural_equal(ParallelTrips()(once), once)
