import os
import resource
import signal
import tempfile
import time

import pytest

from benchmarks.workers import Worker
from tvm_fusion.measure.isolate import Failed, is_readable, isolated
from tvm_fusion.tuning.candidate_bench import measure

LIMIT = 1024  # of select.select


@pytest.fixture
def beyond():
    """Have every new descriptor be one that ``select.select`` does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LIMIT + 64:
        pytest.skip(f"this process may open no more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, LIMIT + 64), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < LIMIT:
        taken.append(os.dup(taken[0]))
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("beyond")
def test_what_waits_takes_descriptors_of_any_number():
    reading, writing = os.pipe()
    assert reading > LIMIT
    assert not is_readable(reading, 0)
    assert not measure._is_readable(reading, 0)
    os.write(writing, b"x")
    assert is_readable(reading, None)
    assert measure._is_readable(reading, 60)
    os.close(writing)
    os.read(reading, 1)
    assert is_readable(reading, float("inf"))  # its end
    os.close(reading)


@pytest.mark.usefixtures("beyond")
def test_functions_and_workers_are_asked_then():
    assert isolated(lambda: 6 * 7, seconds=600) == 42
    worker = Worker("-c", "print(input())", environment={})
    worker.send("here")
    assert worker.line(600) == "here"
    worker.close()


def test_killed_processes_leave_no_temporary_folders(tmp_path):
    code = "import tempfile; print(tempfile.mkdtemp(), flush=True); input()"
    worker = Worker("-c", code, environment={})
    made = [worker.line(600), isolated(tempfile.mkdtemp, seconds=600)]
    assert os.path.exists(made[0])
    worker.close()
    told = tmp_path / "told"

    def make_and_die():
        told.write_text(tempfile.mkdtemp())
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(Failed, match="SIGKILL"):
        isolated(make_and_die)
    made.append(told.read_text())
    assert not any(map(os.path.exists, made))


def test_it_waits_no_longer_than_asked():
    reading, writing = os.pipe()
    start = time.monotonic()
    assert not is_readable(reading, 0.01)
    assert time.monotonic() - start >= 0.009
    os.close(reading)
    os.close(writing)
