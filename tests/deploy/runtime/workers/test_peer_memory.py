"""Memory that kernels of other workers write to, between processes without GPUs."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import tvm_ffi

from tvm_fusion.core.peer_memory import TURNS, nbytes
from tvm_fusion.deploy.runtime import load
from tvm_fusion.deploy.runtime.workers import nccl, peer_memory
from tvm_fusion.errors import UserError

CPU = tvm_ffi.device("cpu", 0)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("cudart") / "libcudart.so"
    source = Path(__file__).with_name("cudart.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture(autouse=True)
def opened(library, monkeypatch):
    monkeypatch.setattr(peer_memory, "load_cudart", lambda: library)
    peer_memory.cudart.cache_clear()
    yield library
    peer_memory.cudart.cache_clear()


@pytest.mark.parametrize("size", [2, 4])
def test_workers_write_to_each_others_memory(run_workers, opened, size):
    def work(peers):
        memory = peer_memory.PeerMemory(peers, CPU)
        *boxes, rank = memory.addresses.tolist()
        assert rank == peers.rank
        assert ctypes.string_at(boxes[rank], nbytes(size)) == bytes(nbytes(size))
        peers.barrier()
        for box in boxes:
            ctypes.c_uint8.from_address(box + TURNS + rank).value = rank + 1
        peers.barrier()
        assert ctypes.string_at(boxes[rank] + TURNS, size) == bytes(range(1, size + 1))
        memory.abort()
        assert ctypes.c_uint32.from_address(boxes[rank]).value
        peers.barrier()
        memory.close()
        assert ctypes.c_int.in_dll(opened, "closed").value == size - 1
        assert ctypes.c_int.in_dll(opened, "freed").value == 1
        memory.abort()  # of what is closed: nothing

    assert run_workers(size, work) == [0] * size


def test_gpus_that_do_not_reach_each_other_are_one_sentence_on_all_workers(run_workers, opened):
    def work(peers):
        ctypes.c_int.in_dll(opened, "fail_open").value = peers.rank
        message = r"worker 1 does not reach the other GPUs' memory \(CUDA error 217\).*peer_sums"
        with pytest.raises(UserError, match=message):
            peer_memory.PeerMemory(peers, CPU)
        assert ctypes.c_int.in_dll(opened, "freed").value == 1

    assert run_workers(2, work) == [0, 0]


MANIFEST = {"target": {"kind": "cuda", "text": "cuda:sm_90a"}}


def test_fewer_gpus_than_workers(monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: (object(),))
    message = "on 2 workers, and this machine has 1 visible GPU; expected a GPU for each"
    with pytest.raises(UserError, match=message):
        load._check_devices(Path("lm"), MANIFEST, 2)


def test_gpus_without_nccl(monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: (object(), object()))
    monkeypatch.setattr(nccl, "_open", lambda _name: None)
    nccl.library.cache_clear()
    with pytest.raises(UserError, match=r"libnccl\.so\.2 was not found, .*tvm_fusion\[parallel\]"):
        load._check_devices(Path("lm"), MANIFEST, 2)
