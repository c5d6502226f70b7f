"""The kernels of the tutorial become machine code for Hopper, with either compiler."""

import re
import runpy
import shutil
from pathlib import Path

import pytest
from device_code import cuda_archs
from nvcc import needs_nvcc

from tvm_fusion.deploy.toolchain.nvrtc import nvrtc_lacks

SCRIPT = Path(__file__).parents[2] / "tutorials" / "07_a_kernel_step_by_step.py"
STEPS = ["plain", "tiles", "registers", "ring", "mma", "wgmma", "epilogue"]


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_nvcc_compiles_every_step(capsys):
    page = runpy.run_path(str(SCRIPT))
    assert list(page["kernels"]) == STEPS
    said = re.findall(r"(\w+) +\d+ threads of +(\d+) registers", capsys.readouterr().out)
    machines = page["machines"]
    assert said == [(name, str(machines[name].registers)) for name in STEPS]
    for name, instruction in {
        "ring": "cp.async.cg",
        "mma": "mma.sync.aligned.m16n8k16",
        "wgmma": "wgmma.mma_async.sync.aligned.m64n64k16",
        "epilogue": "cp.async.bulk.tensor.2d",
    }.items():
        assert instruction in machines[name].ptx


@pytest.mark.cuda_toolchain
@pytest.mark.skipif(bool(nvrtc_lacks()), reason="the cuda extra is not installed")
def test_the_extra_compiles_them_without_nvcc(monkeypatch, capsys):
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda x, *a, **k: None if x == "nvcc" else which(x, *a, **k)
    )
    page = runpy.run_path(str(SCRIPT))
    assert "machines" not in page
    assert "bytes of machine code" in capsys.readouterr().out
    assert cuda_archs(page["cubin"]) == [90]
