"""The number of threads: physical cores by default, else what the environment says."""

import os
import subprocess
import sys

import pytest

from tvm_fusion import threads

pytestmark = pytest.mark.slow_beyond(2)

PROGRAM = """
import os
os.sched_setaffinity(0, {cpus})
from tvm_fusion.threads import choose_threads
choose_threads()
import tvm
print(tvm.get_global_func("runtime.NumThreads")())
"""


def in_a_process(cpus, **environment):
    kept = {k: v for k, v in os.environ.items() if "NUM_THREADS" not in k}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(cpus=set(cpus))],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.slow
def test_tvm_takes_every_core_that_the_process_may_use():
    allowed = sorted(os.sched_getaffinity(0))
    assert in_a_process(allowed) == threads.physical_cores()
    assert in_a_process(allowed[:1]) == 1


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", ["TVM_NUM_THREADS", "OMP_NUM_THREADS"])
def test_the_environment_decides(name):
    assert in_a_process(os.sched_getaffinity(0), **{name: "1"}) == 1


def test_hyper_threads_share_a_core(monkeypatch):
    pairs = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5", 7: "3,7"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(pairs))
    monkeypatch.setattr(threads, "_siblings", pairs.__getitem__)
    assert threads.physical_cores() == 3


def test_a_hidden_topology_counts_processors(monkeypatch):
    monkeypatch.setattr(threads, "_TOPOLOGY", "/nowhere/{}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert threads.physical_cores() == 3
