"""What a bench of candidates writes down, draws and compares."""

import math

import numpy as np
import pytest

from tvm_fusion.tuning.candidate_bench.log import Log
from tvm_fusion.tuning.candidate_bench.tensors import Draw, Runtime, difference


def test_a_log_goes_on_behind_whole_lines(tmp_path):
    path = tmp_path / "records.jsonl"
    task = {"key": {"structure": "0"}, "title": "a task"}
    for config in ({"mr": 1}, {"mr": 2}):
        log = Log(path)
        log.put_trial(task, config, (1.0, 2.0, ""))
        log.close()
        with path.open("ab") as file:
            file.write(b'{"cut')
    log = Log(path)
    assert log.has(task["key"], {"mr": 1})
    assert log.has(task["key"], {"mr": 2})
    assert not log.has(task["key"], {"mr": 3})
    log.close()
    assert path.read_text().count("\n") == len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "bool"])
def test_what_is_drawn_is_alike_in_every_process(dtype):
    first, second = (Draw(3) for _ in range(2))
    for draw in ("input", "weight"):
        arguments = ((30, 7), dtype) + ((0, 1) if draw == "weight" else ())
        one, other = (getattr(source, draw)(*arguments) for source in (first, second))
        assert (one.shape, str(one.dtype)) == ((30, 7), dtype)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_tensors_keep_their_rank(shape):
    runtime = Runtime("llvm")
    array = np.asarray(np.arange(6.0).reshape(-1)[: int(np.prod(shape))].reshape(shape)).T
    tensor = runtime.tensor(array)
    assert tuple(tensor.shape) == array.shape
    np.testing.assert_array_equal(runtime.array(tensor), array)


def test_differences():
    a = np.array([1.0, -4.0, np.inf], "float16")
    assert difference(a, a.copy()) == (0.0, 1.0)
    assert difference(np.array([1.5, -4.0, np.inf], "float16"), a) == (0.5, 4.0)
    assert math.isinf(difference(np.array([1.0, np.inf, np.inf], "float16"), a)[0])
    assert math.isinf(difference(np.array([1.0, -4.0, 9.0], "float16"), a)[0])
    assert math.isinf(difference(np.array([np.nan] * 3, "float16"), a)[0])
    assert difference(np.array([3], "int64"), np.array([1], "int64")) == (2.0, 1.0)
