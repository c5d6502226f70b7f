"""Registers of GEMMs whose few steps over K LLVM unrolls for AMD GPUs."""

import pytest
from amd_code import amd_module
from group_kernels import group, kernel, tensor
from tvm import relax

from tvm_fusion.deploy.toolchain.rocm_code import kernels
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.gpu.threads import anchored_sums
from tvm_fusion.schedule.sort.template import RankSort

op = relax.op


def gemm(arch):
    """What a GEMM of 70x70x45 in float32 takes: three steps of 16, results at odd edges."""
    spec = parse(f"rocm:{arch}")
    params = [tensor("x", 70, 45), tensor("w", 45, 70)]
    members = group(params, lambda emit, x, w: op.matmul(x, w), spec)
    func = kernel(GpuContraction(), members, spec)[1]
    (found,) = kernels(amd_module({"main": func}, arch).inspect_source("asm"))
    return found


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_sums_are_computed_in_their_loop(arch):
    found = gemm(arch)
    assert found.registers <= 128
    assert found.spilled == found.scratch_bytes == 0


def ranks(arch):
    """What a sort of rows of 300 keys takes."""
    spec = parse(f"rocm:{arch}")
    members = group([tensor("x", 5, 300, dtype="int32")], lambda emit, x: op.argsort(x, -1), spec)
    func = kernel(RankSort(True), members, spec)[1]
    (found,) = kernels(amd_module({"main": func}, arch).inspect_source("asm"))
    return found


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_counts_of_comparisons_keep_no_masks(arch):
    assert ranks(arch).spilled == 0


def test_llvm_still_moves_sums_into_branches(monkeypatch):
    """When this fails, `schedule.gpu.anchored_sums` can go."""
    monkeypatch.setattr(anchored_sums, "MOST_COUNTS", 0)
    assert gemm("gfx1100").spilled > 0
    assert ranks("gfx942").spilled > 0
