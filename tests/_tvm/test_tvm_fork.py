"""Calls in forked children on TVM's pools; those on the team: test_thread_team.py."""

import os
import subprocess
import sys

import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

import tvm_fusion

PROGRAM = """
import os, sys, time
import numpy as np
import tvm_fusion
from tvm_fusion.deploy.runtime import executable
if "unprotected" in sys.argv:
    executable.has_run_kernels = lambda: None
doubled = tvm_fusion.load(sys.argv[1])
x = np.arange(1 << 16, dtype="float32")

def right():
    return np.array_equal(doubled(x=x)["y"], x + x)

def child(then=lambda: True, seconds=600):
    process = os.fork()
    if not process:
        os._exit(0 if right() and then() else 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.005)
    os.kill(process, 9)
    os.waitpid(process, 0)
    return False
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    shape = [1 << 16]
    model = onnx_model(
        [("Add", ["x", "x"], ["y"])], [("x", T.FLOAT, shape)], [("y", T.FLOAT, shape)]
    )
    return tvm_fusion.compile(model).export(tmp_path_factory.mktemp("fork") / "doubled")


def printed(folder, program, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program, str(folder), *arguments],
        env={**os.environ, "TVM_NUM_THREADS": "2", "TVM_FUSION_THREAD_POOL": "tvm", **environment},
        capture_output=True,
        text=True,
        timeout=6000,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_children_call_whatever_their_parent_has_done(folder):
    program = """
from concurrent.futures import ThreadPoolExecutor
def threads():
    with ThreadPoolExecutor(2) as pool:
        return all(pool.map(lambda _: right(), range(4)))
found = [child(), right(), child(), child(child), right(), child(threads)]
time.sleep(0.5)  # the workers sleep by now
print(*found, child(), right())
"""
    assert printed(folder, program) == ["True"] * 8


@pytest.mark.slow
def test_a_child_has_a_thread_alone_if_its_parents_workers_may_have_slept(folder):
    program = """
right()
threads = lambda: len(os.listdir("/proc/self/task")) == 1
print(child(threads), child(lambda: child(threads)))
"""
    assert printed(folder, program, TVM_THREAD_POOL_SPIN_COUNT="10") == ["True", "True"]


@pytest.mark.slow
def test_stacks_of_many_workers_are_more_than_glibc_keeps(folder):
    """A child runs alone then, but for functions in processes of their own, as trials of tune."""
    program = """
from tvm_fusion.measure.isolate import isolated
right()
alone = lambda: len(os.listdir("/proc/self/task")) == 1
workers = isolated(lambda: right() and len(os.listdir("/proc/self/task")) - 2)
print(child(alone), child(lambda: child(alone)), workers)
"""
    assert printed(folder, program, TVM_NUM_THREADS="5") == ["True", "True", "4"]


@pytest.mark.slow
def test_tvm_waits_for_workers_that_are_not_there(folder):
    """When this fails, `_tvm.fork` can go."""
    assert printed(folder, "right(); print(child(seconds=1.5))", "unprotected") == ["False"]
