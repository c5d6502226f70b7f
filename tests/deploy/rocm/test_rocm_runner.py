"""The runner in C++ on AMD GPUs: as Python's load."""

import os
import shutil
import subprocess

import numpy as np
import pytest
from scaled_chain import RESULT, ROWS, WIDTH, expected

from tvm_fusion.deploy.build.bundle import bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="no C++ here"),
]


def call(runner, environment, *arguments):
    command = [str(runner), *map(str, arguments), "--repeat", "2", "--warmup", "1"]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_a_bundle_runs_without_python(rocm, chain_folder, tmp_path):
    folder = bundle(chain_folder, tmp_path / "bundle")
    x = np.random.default_rng().standard_normal((ROWS, WIDTH)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    given = ["--input", f"x={tmp_path}/x.npy", "--output", tmp_path]
    done = call(folder / "tvm_fusion_run", rocm, folder / "model", *given)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / f"{RESULT}.npy")
    np.testing.assert_allclose(found, expected(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FAKE_HIP_ARCH": "gfx1100"}, "; this device is gfx1100: compile it for that."),
        ({"FAKE_HIP_DEVICES": "0"}, ", but GPU 0 does not answer (HIP error 101: invalid device"),
        ({"ROCM_PATH": "/nowhere"}, ", but HIP's runtime library does not load (/nowhere/lib/lib"),
    ],
)
def test_other_machines_are_one_sentence(runner, rocm, chain_folder, environment, words):
    done = call(runner, {**rocm, **environment}, chain_folder)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"is made for rocm:gfx90a,gfx942{words}" in line
