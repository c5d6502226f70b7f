"""Tiled GEMM on AMD's matrix cores: the cases of mma.sync, computed by MFMA and by WMMA."""

import pytest
from group_kernels import check

from tests.schedule.contraction.mma.test_tile_gemm_gpu import CASES
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.tile.config import TileGemmConfig

pytestmark = pytest.mark.slow_beyond(2)

ARCHS = {arch: parse(f"rocm:{arch}") for arch in ("gfx942", "gfx90a", "gfx1100")}
TEMPLATE = GpuContraction()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", CASES)
def test_claims_and_computes_the_product(name, arch):
    params, body, reference = CASES[name]
    tolerance = 2e-3 if name.startswith("epilogue") else 2e-5
    claim, _ = check(TEMPLATE, params, body, reference, ARCHS[arch], tolerance)
    tile = claim.details.config.tile
    assert isinstance(tile, TileGemmConfig)
    assert tile.problem.mma.family == ("wmma" if arch == "gfx1100" else "mfma")
