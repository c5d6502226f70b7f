"""AMD kernels of every kind run in the interpreter, through ``tvm_fusion.load``."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulator.amd.disassembler import library

from benchmarks.amd_emulator.run import ARCHS, key_of, keys
from benchmarks.amd_emulator.table import load, page
from tvm_fusion.deploy.toolchain import rocm

SAMPLE = 6  # of all kinds, drawn anew by each run of the tests


def test_the_record_holds_every_kind_and_the_page_is_its_own():
    record = load()
    found = [key_of(run) for run in record["runs"]]
    assert found == [key for key in keys() if key in set(found)]
    assert {(case, dtype, form) for case, _, dtype, form in found} == {
        (case, dtype, form) for case, _, dtype, form in keys()
    }
    assert len(found) >= 500
    assert all(run["right"] for run in record["runs"])
    assert all(f"| {run['case']} | " in page() for run in record["runs"][::50])


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found")
@pytest.mark.skipif(library() is None, reason="no LLVM library was found, which lld-19 depends on")
@pytest.mark.parametrize("order", [[], ["--reverse"]], ids=["forward", "reverse"])
def test_kernels_are_right_in_the_interpreter(order, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    out, seed = tmp_path / "runs.json", int(np.random.default_rng().integers(1 << 30))
    command = [sys.executable, "-m", "benchmarks.amd_emulator", *order, "--out", str(out)]
    done = subprocess.run(
        [*command, "--sample", str(SAMPLE), "--seed", str(seed)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list(temporary.iterdir())
    runs = load(out)["runs"]
    assert [run["right"] for run in runs] == [True] * SAMPLE
    assert {run["arch"] for run in runs} <= set(ARCHS)
