"""The team of threads that takes parts of loops, in processes without the compiler."""

import json
import os
import subprocess
import sys

import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

import tvm_fusion

PROGRAM = """
import ctypes, json, os, sys, threading, time
from pathlib import Path
import numpy as np
import tvm_ffi
import tvm_fusion

doubled = tvm_fusion.load(sys.argv[1])
x = np.arange(1 << 16, dtype="float32")
BODY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, BODY, ctypes.c_void_p, ctypes.c_int)
slot = ctypes.c_void_p.in_dll(ctypes.CDLL(sys.argv[1] + "/model.so"), "__TVMBackendParallelLaunch")
here = threading.get_native_id

def right():
    return np.array_equal(doubled(x=x)["y"], x + x)

def launch(trips, body):
    closure = ctypes.c_int64(trips)
    return LAUNCH(slot.value)(BODY(body), ctypes.addressof(closure), 0)

def workers():
    names = [p.read_text().strip() for p in Path("/proc/self/task").glob("*/comm")]
    return names.count("tvm_fusion")

def child(function):
    process = os.fork()
    if not process:
        os._exit(0 if function() else 1)
    return os.waitpid(process, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models: x + x, and x * 3."""
    shape = [1 << 16]
    place = tmp_path_factory.mktemp("team")
    ends = [("x", T.FLOAT, shape)], [("y", T.FLOAT, shape)]
    models = [
        onnx_model([("Add", ["x", "x"], ["y"])], *ends),
        onnx_model([("Sum", ["x", "x", "x"], ["y"])], *ends),
    ]
    return [
        tvm_fusion.compile(model).export(place / str(number)) for number, model in enumerate(models)
    ]


def printed(folders, program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program, *map(str, folders)],
        env={**os.environ, "TVM_NUM_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        timeout=6000,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_worker_that_does_not_come_is_not_waited_for(folders):
    program = """
came, go = threading.Event(), threading.Event()
def held(part, *_):
    if here() == holder.native_id:
        came.wait()  # until the worker has taken the other part
    else:
        came.set()
        go.wait()
    return 0
holder = threading.Thread(target=lambda: launch(2, held))
holder.start()
came.wait()  # the only worker is busy until `go`
ran = []
code = launch(100, lambda part, *_: ran.append((part, here())) or 0)
alone = {thread for _, thread in ran} == {here()}
is_right = right()
go.set()
holder.join()
parts = sorted(part for part, _ in ran)
print(json.dumps([code, parts == list(range(len(parts))), len(parts), alone, is_right]))
"""
    # 100 trips for two threads with at most 32 parts each: two trips a part.
    assert printed(folders, program) == [0, True, 50, True, True]


def test_a_worker_takes_parts_when_it_comes(folders):
    program = """
seen = set()
met = threading.Barrier(2)
code = launch(2, lambda part, *_: met.wait() and 0 or seen.add(here()) or 0)
print(json.dumps([code, len(seen), workers()]))
"""
    assert printed(folders, program) == [0, 2, 1]


def test_tvm_gives_each_worker_its_part(folders):
    """When this fails, TVM's pool no longer waits for workers, and the team can go."""
    program = """
first = lambda part, *_: owners[part].add(here()) or 0
owners = {0: set(), 1: set()}
for _ in range(20):
    launch(2, first)
print(json.dumps([owners[0] == {here()}, here() in owners[1], workers()]))
"""
    assert printed(folders, program, TVM_FUSION_THREAD_POOL="tvm") == [True, False, 0]


def test_calls_of_several_threads_share_one_team(folders):
    program = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(20) as pool:  # more than there are places for jobs
    right_ones = sum(pool.map(lambda _: right(), range(400)))
other = tvm_fusion.load(sys.argv[2])
also = np.array_equal(other(x=x)["y"], x + x + x)
print(json.dumps([right_ones, also, workers()]))
"""
    assert printed(folders, program, TVM_NUM_THREADS="3") == [400, True, 2]


def test_a_library_whose_team_it_is_stays(folders):
    program = """
import gc
other = tvm_fusion.load(sys.argv[2])
right()
del doubled
gc.collect()
calls = [np.array_equal(other(x=x)["y"], x + x + x) for _ in range(20)]
print(json.dumps([all(calls), workers()]))
"""
    assert printed(folders, program) == [True, 1]


def test_a_loop_inside_a_loop(folders):
    program = """
inner, lock = [0] * 8, threading.Lock()
def outer(part, *_):
    def count(_, environment, __):
        with lock:
            inner[part] += 1
        return 0
    return launch(4, count)
code = launch(8, outer)
# On a worker a loop is one part; on the caller's thread it is a job of its own.
print(json.dumps([code, set(inner) <= {1, 4}]))
"""
    assert printed(folders, program) == [0, True]


def test_an_error_of_any_part_is_the_callers(folders):
    program = """
ffi = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
def fails(part, *_):
    if part in (3, 40):
        ffi.TVMFFIErrorSetRaisedFromCStr(b"ValueError", b"of a part")
        return -1
    done.append(part)
    return 0
done = []
code = launch(64, fails)
error = ctypes.c_void_p()
ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(error))
print(json.dumps([code, len(done), bool(error.value), launch(4, lambda *_: 0), right()]))
"""
    assert printed(folders, program) == [-1, 62, True, 0, True]


def test_one_thread_has_no_workers(folders):
    program = """
parts = []
code = launch(64, lambda part, *_: parts.append(part) or 0)
print(json.dumps([code, parts, right(), workers()]))
"""
    assert printed(folders, program, TVM_NUM_THREADS="1") == [0, [0], True, 0]


def test_forked_children_have_teams_of_their_own(folders):
    """Whether their parents' workers yield or sleep by then."""
    program = """
helped = lambda: right() and workers() == 1
before = child(helped)
here_too = helped()
awake = child(lambda: workers() == 0 and helped() and child(helped))
print(json.dumps([before, here_too, awake, child(helped), helped()]))
"""
    spins = {"TVM_THREAD_POOL_SPIN_COUNT": "100"}
    assert printed(folders, program, **spins) == [True] * 5
