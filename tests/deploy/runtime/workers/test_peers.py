"""Collectives over shared memory, and what happens when a worker ends."""

import os
import signal

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
import pytest

from tvm_fusion.deploy.runtime.workers import peers

DTYPES = ["float32", "float16", "bfloat16", "float64", "int8", "int32", "int64", "uint8"]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_collectives(run_workers, monkeypatch, size, dtype):
    monkeypatch.setattr(peers, "SLOT", 256)  # so that tensors take several pieces
    count = 301

    def values(rank):
        return (np.arange(count) % 5 + rank).astype(dtype)

    def work(group):
        own, whole = values(group.rank), np.concatenate([values(r) for r in range(size)])
        result, gathered = np.empty(count, dtype), np.empty(size * count, dtype)
        group.all_gather(own, gathered)
        np.testing.assert_array_equal(gathered, whole)
        reductions = (np.sum, np.prod, np.min, np.max, np.mean)
        for kind, reduce in enumerate(reductions):
            group.all_reduce(own, kind, result)
            wide = reduce(whole.reshape(size, count).astype("float64"), axis=0)
            if kind != 1 or dtype not in ("int8", "uint8", "bfloat16"):  # exact there
                np.testing.assert_array_equal(result, wide.astype(dtype))
        group.broadcast(own if group.rank == 0 else None, result)
        np.testing.assert_array_equal(result, values(0))
        group.scatter(whole if group.rank == 0 else None, result)
        np.testing.assert_array_equal(result, own)
        gathered[:] = 0
        group.gather(own, gathered if group.rank == 0 else None)
        np.testing.assert_array_equal(gathered, whole if group.rank == 0 else 0)
        if group.rank == 0:
            group.send(own, 1)
        elif group.rank == 1:
            group.receive(result, 0)
            np.testing.assert_array_equal(result, values(0))
        said = group.agree("no" if group.rank == 1 else "")
        assert said == "no"

    assert run_workers(size, work) == [0] * size


def test_halves_are_added_in_float32(run_workers):
    """In float16, 1 + 2**-11 is 1: four workers' sum would stay there."""
    parts = [1, 2**-11, 2**-11, 2**-10]

    def work(group):
        result = np.empty(1, "float16")
        group.all_reduce(np.array([parts[group.rank]], "float16"), 0, result)
        assert result[0] == np.float16(sum(parts)) > 1

    assert run_workers(4, work) == [0] * 4


@pytest.mark.parametrize("size", [2, 4])
def test_all_end_when_one_is_killed(run_workers, size):
    def work(group):
        array = np.ones(8, "float32")
        group.all_reduce(array, 0, array)
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(3):
            group.all_reduce(array, 0, array)

    assert run_workers(size, work) == [4 if rank != 1 else -9 for rank in range(size)]


def test_the_first_reason_counts(run_workers):
    def work(group):
        if group.rank == 2:
            group.fail("worker 1 is out of memory")
            group.fail("another reason")
        group.barrier()

    assert run_workers(3, work) == [4, 4, 4]


def test_a_rank_that_is_not_there(run_workers):
    def work(group):
        with pytest.raises(ValueError, match=r"worker \d cannot reach worker 5"):
            group.send(np.ones(1), 5)

    assert run_workers(2, work) == [0, 0]
