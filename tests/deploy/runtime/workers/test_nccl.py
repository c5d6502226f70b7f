"""The binding of NCCL, against a library of its functions between processes without GPUs."""

import ctypes
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from tvm_fusion.deploy.runtime import load
from tvm_fusion.deploy.runtime.workers import nccl
from tvm_fusion.errors import UserError

STREAM = 0x51
CPU = tvm_ffi.device("cpu", 0)


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    path = tmp_path_factory.mktemp("nccl") / nccl.LIBRARY
    source = Path(__file__).with_name("nccl.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, source, "-lpthread"], check=True)
    return str(path)


@pytest.fixture
def opened(fake, monkeypatch):
    load.open_runtime()
    monkeypatch.setattr(nccl, "_open", lambda _name: ctypes.CDLL(fake))
    monkeypatch.setattr(nccl, "_set_device", lambda _device: None)
    monkeypatch.setattr(nccl, "_stream", lambda: STREAM)
    nccl.library.cache_clear()
    yield nccl.library()
    nccl.library.cache_clear()


def tensor(*values):
    return tvm_ffi.from_dlpack(np.array(values, "float32"))


def numbers(one):
    return np.from_dlpack(one).tolist()


@pytest.mark.parametrize("size", [2, 4])
def test_collectives_on_the_current_stream(run_workers, opened, size):
    def work(peers):
        nccl.join(peers, CPU)
        rank, ranks = peers.rank, range(size)
        own, result, all_ = tensor(rank, rank + 10), tensor(0, 0), tensor(*[0] * 2 * size)
        whole = [float(x) for r in ranks for x in (r, r + 10)]
        for kind, reduce in enumerate((sum, np.prod, min, max, np.mean)):
            nccl.allreduce(own, kind, True, result)
            assert numbers(result) == [reduce(list(ranks)), reduce([r + 10 for r in ranks])]
        assert ctypes.c_void_p.in_dll(opened, "last_stream").value == STREAM
        nccl.allgather(own, True, all_)
        assert numbers(all_) == whole
        nccl.broadcast_from_worker0(own if rank == 0 else None, True, result)
        assert numbers(result) == [0, 10]
        nccl.scatter_from_worker0(all_ if rank == 0 else None, True, result)
        assert numbers(result) == numbers(own)
        back = tensor(*[0] * 2 * size) if rank == 0 else None
        nccl.gather_to_worker0(own, True, back)
        assert back is None or numbers(back) == whole
        peers.barrier()

    assert run_workers(size, work) == [0] * size


def test_errors_of_nccl_and_types_that_it_lacks(run_workers, opened):
    def work(peers):
        nccl.join(peers, CPU)
        ctypes.c_int.in_dll(opened, "fail_next").value = 1
        with pytest.raises(RuntimeError, match="ncclAllReduce: unhandled cuda error"):
            nccl.allreduce(tensor(1), 0, True, tensor(1))
        short = tvm_ffi.from_dlpack(np.zeros(1, "int16"))
        with pytest.raises(RuntimeError, match="NCCL has no type int16"):
            nccl.allreduce(short, 0, True, short)
        peers.barrier()

    assert run_workers(2, work) == [0, 0]


def test_kernels_that_wait_for_a_worker_that_ended_are_aborted(run_workers, opened):
    def work(peers):
        nccl.join(peers, CPU)
        if peers.rank == 1:
            return
        aborted, end = ctypes.c_int.in_dll(opened, "aborted"), time.monotonic() + 60
        while not aborted.value and time.monotonic() < end:
            time.sleep(0.01)
        assert aborted.value
        with pytest.raises(nccl.Broken):
            nccl.allreduce(tensor(1), 0, True, tensor(1))

    assert run_workers(2, work) == [0, 0]


def test_missing_nccl_is_one_sentence_on_all_workers(run_workers, monkeypatch):
    load.open_runtime()
    nccl.library.cache_clear()

    def work(peers):
        if peers.rank == 1:
            monkeypatch.setattr(nccl, "_open", lambda _name: None)
        else:
            monkeypatch.setattr(nccl, "library", lambda: None)
        with pytest.raises(UserError, match=r'NCCL; run `pip install "tvm_fusion\[parallel\]"`'):
            nccl.join(peers, CPU)

    assert run_workers(2, work) == [0, 0]


def test_an_old_nccl(opened, monkeypatch):
    nccl.library.cache_clear()
    monkeypatch.setattr(nccl, "LEAST_VERSION", 23000)
    with pytest.raises(UserError, match=r"NCCL has version 2\.28\.3; expected 2\.30\.0 or newer"):
        nccl.library()
