"""Loading without the compiler, in processes and threads of one's own."""

import gc
import json
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from tiny_models import dense_data, dense_expected, dense_weights

import tvm_fusion

ALONE = """
import json, sys
import numpy as np
import tvm_fusion

folder, data, result = sys.argv[1:]
executable = tvm_fusion.load(folder)
np.save(result, executable(data=np.load(data))["scores"])
maps = [line.split(maxsplit=5) for line in open("/proc/self/maps")]
print(json.dumps({
    "modules": sorted(m for m in sys.modules if m.split(".")[0] in ("tvm", "onnx")),
    "files": sorted({entry[5].strip() for entry in maps if len(entry) == 6}),
}))
"""


@pytest.fixture(scope="module")
def alone(dense_folder, tmp_path_factory):
    """What a process that only loads and runs leaves behind."""
    place = tmp_path_factory.mktemp("alone")
    np.save(place / "data.npy", dense_data(3))
    command = [sys.executable, "-c", ALONE, dense_folder, place / "data.npy", place / "result.npy"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout), np.load(place / "result.npy")


@pytest.mark.slow
def test_no_compiler_is_loaded(alone):
    seen, _ = alone
    assert seen["modules"] == []
    names = [path.rsplit("/", 1)[-1] for path in seen["files"]]
    assert "libtvm_runtime.so" in names
    assert not [name for name in names if "tvm_compiler" in name or "LLVM" in name]


def test_results_are_right(alone):
    _, result = alone
    expected = dense_expected(dense_data(3), **dense_weights())
    assert np.abs(result - expected).max() < 1e-5 * np.abs(expected).max()


def test_weights_are_mapped(alone, dense_folder):
    seen, _ = alone
    assert str(dense_folder / "weights.bin") in seen["files"]


def test_a_relative_path_is_taken(dense_folder, monkeypatch):
    monkeypatch.chdir(dense_folder.parent)
    assert tvm_fusion.load("dense")(data=dense_data(1))["scores"].shape == (1, 32)


def test_threads_get_what_one_thread_gets(dense_folder):
    executable = tvm_fusion.load(dense_folder)
    cases = [dense_data(1 + seed % 8, seed) for seed in range(64)]
    serial = [executable(data=data)["scores"] for data in cases]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda data: executable(data=data)["scores"], cases * 3)
    for result, expected in zip(results, serial * 3, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_several_artifacts_live_side_by_side(dense_folder):
    first, second = tvm_fusion.load(dense_folder), tvm_fusion.load(dense_folder)
    data = dense_data(2)
    np.testing.assert_array_equal(first(data=data)["scores"], second(data=data)["scores"])


ENDURANCE = """
import ctypes, json, os, sys
import numpy as np
import tvm_fusion

def used():  # of the process's own, in memory or not; counted, while VmRSS is an estimate
    lines = [line.split() for line in open("/proc/self/smaps")]
    own = sum(int(line[1]) for line in lines if line[0] in ("Anonymous:", "Swap:"))
    maps = len(open("/proc/self/maps").readlines())
    return [own, len(os.listdir("/proc/self/fd")), maps]

PR_SET_THP_DISABLE = 41  # the kernel joins pages to huge ones when it has the time
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

folder, data, times = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3])
seen = []
for number in range(times + 1):
    executable = tvm_fusion.load(folder)
    if number % 4 == 0:
        executable(data=data)
    if number and number % (times // 5) == 0:
        seen.append(used())
print(json.dumps(seen))
"""


def test_a_thousand_loads_take_no_more_memory_and_files_than_a_few(dense_folder, tmp_path):
    np.save(tmp_path / "data.npy", dense_data(3))
    command = [sys.executable, "-c", ENDURANCE, dense_folder, tmp_path / "data.npy", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    (_, files, maps), (_, files_later, maps_later) = seen[0], seen[-1]
    # The heap may grow once, by a mebibyte; what every load leaves behind is in each of the parts.
    assert min(later[0] - earlier[0] for earlier, later in pairwise(seen)) < 200  # KiB of 200 loads
    assert files_later == files
    assert abs(maps_later - maps) <= 4


def test_eight_threads_with_inputs_of_their_own(dense_folder):
    """Each checks its own results, with other batches in every call."""
    executable = tvm_fusion.load(dense_folder)
    weights = dense_weights()

    def work(thread):
        for seed in range(20):
            data = dense_data(1 + (seed + thread) % 8, 1000 * thread + seed)
            expected = dense_expected(data, **weights)
            found = executable(data=data)["scores"]
            assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
        return thread

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_a_model_goes_with_its_last_user(dense_folder):
    """And not when the garbage collector looks for cycles: weights may be gigabytes."""
    gc.collect()
    gc.disable()
    try:
        executable = tvm_fusion.load(dense_folder)
        executable(data=dense_data(1))
        gone = weakref.ref(executable)
        del executable
        assert gone() is None
    finally:
        gc.enable()
