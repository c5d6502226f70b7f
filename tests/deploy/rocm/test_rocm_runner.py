"""The runner in C++ on AMD GPUs: as Python's load."""

import os
import shutil
import subprocess

import numpy as np
import pytest
from softmax_chain import ROWS, WIDTH, chain_expected

from tvm_fusion.deploy.build.bundle import bundle
from tvm_fusion.deploy.toolchain.host import require_compiler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="no C++ here"),
]

# The kernels of the model; those of softmax_chain.py in C.
KERNELS = f"""
#include <math.h>
#include <string.h>
enum {{ ROWS = {ROWS}, WIDTH = {WIDTH} }};
static void multiply(float* out, const float* x, const float* w) {{
  for (int i = 0; i < ROWS; ++i) for (int j = 0; j < WIDTH; ++j) {{
    float sum = 0;
    for (int k = 0; k < WIDTH; ++k) sum += x[i * WIDTH + k] * w[k * WIDTH + j];
    out[i * WIDTH + j] = sum;
  }}
}}
static void softmax(float* out, const float* x) {{
  for (int i = 0; i < ROWS; ++i, out += WIDTH, x += WIDTH) {{
    float sum = 0, most = x[0];
    for (int k = 0; k < WIDTH; ++k) most = fmaxf(most, x[k]);
    for (int k = 0; k < WIDTH; ++k) sum += out[k] = expf(x[k] - most);
    for (int k = 0; k < WIDTH; ++k) out[k] /= sum;
  }}
}}
int launch(const void* code, unsigned long code_bytes, const char* name, const unsigned* grid,
           const unsigned* block, unsigned shared, float* const* arguments, unsigned long bytes) {{
  if (bytes < 32) {{ softmax(arguments[0], arguments[1]); return 0; }}
  float one[ROWS * WIDTH], other[ROWS * WIDTH];
  multiply(one, arguments[1], arguments[2]);
  softmax(other, one);
  multiply(arguments[0], other, arguments[3]);
  return 0;
}}
"""


@pytest.fixture(scope="module")
def rocm(fake, tmp_path_factory):
    """The environment in which the fake HIP is that of the machine, with kernels."""
    root = tmp_path_factory.mktemp("rocm")
    (root / "lib").mkdir()
    shutil.copy(fake.path, root / "lib" / "libamdhip64.so")
    (root / "kernels.c").write_text(KERNELS)
    command = [require_compiler(), "-x", "c", "-shared", "-fPIC", "-O1", root / "kernels.c"]
    subprocess.run([*command, "-o", root / "kernels.so", "-lm"], check=True)
    return {"ROCM_PATH": str(root), "FAKE_HIP_KERNELS": str(root / "kernels.so")}


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
    found = np.load(tmp_path / "s5.npy")
    np.testing.assert_allclose(found, chain_expected(x), rtol=1e-4, atol=1e-6)


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
