"""What a process holds does not grow with the models that it has compiled or loaded."""

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tvm_fusion.deploy.runtime.artifact.weights_file import mapped

SCRIPT = Path(__file__).with_name("many_models.py")
COUNT, FIRST = 60, 10  # the first fill caches that have bounds
MIB = 1 << 20


def held(folder, count):
    command = [sys.executable, str(SCRIPT), str(folder), str(count)]
    path = os.pathsep.join([str(SCRIPT.parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "TVM_NUM_THREADS": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_sixty_models(tmp_path):
    found = held(tmp_path, COUNT)
    first, last = found["one_by_one"][FIRST - 1], found["one_by_one"][-1]
    assert last["descriptors"] == first["descriptors"]
    assert last["threads"] == first["threads"]
    # A library is five mappings or more, and a weight, an intermediate or a result of each model
    # a MiB.
    assert last["mappings"] - first["mappings"] < COUNT - FIRST
    assert last["kib"] - first["kib"] < (COUNT - FIRST) * 1024 / 2
    # All at once have a library and weights each, no descriptor and no thread.
    assert found["all_loaded"]["descriptors"] == first["descriptors"]
    assert found["all_loaded"]["threads"] == first["threads"]
    assert found["none_loaded"]["mappings"] - last["mappings"] < COUNT - FIRST


def test_a_mapped_file_has_no_descriptor_and_goes_with_its_arrays(tmp_path):
    path = tmp_path / "data"
    content = np.random.default_rng().integers(0, 256, MIB, dtype=np.uint8)
    path.write_bytes(content.tobytes())

    def times():
        gc.collect()
        return Path("/proc/self/maps").read_text().count(str(path))

    before = len(os.listdir("/proc/self/fd"))
    part = mapped(path)[4096:].view(np.uint32)
    assert len(os.listdir("/proc/self/fd")) == before
    assert times() == 1
    np.testing.assert_array_equal(part, content[4096:].view(np.uint32))
    part[0] ^= 1  # a copy of one's own
    assert path.read_bytes() == content.tobytes()
    del part
    assert times() == 0


def test_an_empty_file_is_an_empty_array(tmp_path):
    path = tmp_path / "data"
    path.touch()
    assert mapped(path).shape == (0,)


def test_what_cannot_be_mapped_is_an_error(tmp_path, monkeypatch):
    from tvm_fusion.deploy.runtime.artifact import weights_file as mapped_file

    path = tmp_path / "data"
    path.write_bytes(b"x")

    def refuse(*_):
        ctypes.set_errno(12)
        return mapped_file._FAILED

    monkeypatch.setattr(mapped_file, "_C", type("C", (), {"mmap": refuse, "munmap": None}))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        mapped(path)
