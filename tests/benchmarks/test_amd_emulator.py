"""AMD kernels of every kind run in the interpreter, through ``tvm_fusion.load``."""

import subprocess
import sys
from pathlib import Path

import pytest
from emulator.amd.disassembler import library

from benchmarks.amd_emulator import table
from benchmarks.amd_emulator.__main__ import RECORD, load
from benchmarks.amd_emulator.cases import CASES
from benchmarks.amd_emulator.run import ARCHS, DTYPES
from tvm_fusion.deploy.toolchain import rocm

# A kind for each way in which threads exchange values.
FEW = ("softmax of short rows", "GEMV + bias + SiLU", "scan", "transpose")


def test_the_record_holds_every_kind_and_the_page_is_its_own():
    record = load()
    kinds = {(r["case"], r["arch"], r["dtype"]) for r in record["runs"]}
    wanted = {(c, a, d) for c in CASES for a in ARCHS for d in DTYPES}
    assert kinds == {x for x in wanted if x[2] != "bfloat16" or CASES[x[0]].has_bfloat16}
    assert len(CASES) >= 23
    assert all(r["right"] for r in record["runs"])
    assert (RECORD.parents[1] / "README.md").read_text() == table.render(record)


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found")
@pytest.mark.skipif(library() is None, reason="no LLVM library was found, which lld-19 depends on")
@pytest.mark.parametrize("order", [[], ["--reverse"]], ids=["forward", "reverse"])
@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_are_right_in_the_interpreter(arch, order, tmp_path):
    out = tmp_path / "runs.json"
    command = [sys.executable, "-m", "benchmarks.amd_emulator", *FEW, "--arch", arch, *order]
    done = subprocess.run(
        [*command, "--dtype", "float16", "--out", str(out)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    runs = load(out)["runs"]
    assert [r["case"] for r in runs if r["right"]] == list(FEW)
