"""Results larger than L2 are stored to be evicted first, and blocks leave each other registers."""

from dataclasses import replace

import pytest
from group_kernels import CUDA
from nvcc import machine_code, needs_nvcc
from tvm import ir

from tests.schedule.contraction.gemm_graphs import computes, contraction_of, product, with_epilogue
from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.loops import find
from tvm_fusion.schedule.contraction.mma.default import tile_gemm_config
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.mma.model import residency
from tvm_fusion.schedule.contraction.mma.space import tile_gemm_configs
from tvm_fusion.schedule.contraction.tile.problem import gemm_sizes
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_config
from tvm_fusion.schedule.gpu.memory.streaming import STORED

SHAPE = (72, 40, 88)  # results of 72 x 88: float32 and float16, and a residual of float16
BYTES = 72 * 88 * (4 + 2 + 2)
KINDS = {"mma": (tile_gemm_config, tile_gemm_gpu), "wgmma": (wgmma_config, wgmma_gemm_gpu)}


def device(l2_bytes):
    return replace(CUDA.device, l2_bytes=l2_bytes)


def stored(func):
    """Count the stores that are evicted first."""
    calls = [x for x in find(func.body, ir.Call) if call_name(x) == "func_call"]
    return sum(x.args[0].value.startswith(STORED) for x in calls)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("l2_bytes", [BYTES - 1, BYTES, None])
def test_what_outgrows_l2_is_streamed(kind, l2_bytes):
    configure, emit = KINDS[kind]
    case = with_epilogue(*SHAPE)
    members, contraction = contraction_of(*case[:2])
    config = configure(contraction, device(l2_bytes))
    func = emit(members.program, config)
    assert config.problem.is_streamed == (l2_bytes == BYTES - 1)
    assert (stored(func) > 0) == config.problem.is_streamed
    computes(func, members, case, 0)


def test_narrow_vectors_are_streamed():
    case = with_epilogue(72, 40, 84)  # float16 in vectors of four
    members, contraction = contraction_of(*case[:2])
    func = tile_gemm_gpu(members.program, tile_gemm_config(contraction, device(1)))
    names = {x.args[0].value for x in find(func.body, ir.Call) if call_name(x) == "func_call"}
    assert {f"{STORED}_4", f"{STORED}_2"} <= names
    computes(func, members, case, 0)


def test_elements_that_are_stored_alone_are_not_streamed():
    case = product(72, 40, 85)
    members, contraction = contraction_of(*case[:2])
    func = tile_gemm_gpu(members.program, tile_gemm_config(contraction, device(1)))
    assert stored(func) == 0
    computes(func, members, case, 0)


def test_blocks_leave_registers_for_as_many_as_the_model_counts_with():
    _, contraction = contraction_of(*with_epilogue(2048, 88, 2048)[:2])
    found = list(tile_gemm_configs(contraction, CUDA.device))
    for config in found:
        resident, _ = residency(config.tile, gemm_sizes(config.problem), CUDA.device)
        assert config.min_blocks_per_sm == resident
    assert {c.min_blocks_per_sm for c in found} >= {1, 2, 3, 4}


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_machine_code_of_a_short_product_with_a_residual():
    """Left alone, the compiler takes 228 registers of 256 threads, and there is one block."""
    case = with_epilogue(6772, 82, 6824, b_is_turned=True)
    members, contraction = contraction_of(*case[:2])
    config = tile_gemm_config(contraction, CUDA.device)
    assert (config.tile.block_m, config.tile.block_n, config.threads) == (128, 128, 256)
    assert config.min_blocks_per_sm == 2
    (made,) = machine_code({"short": tile_gemm_gpu(members.program, config)}).values()
    assert made.spilled_bytes == 0
    assert made.registers * config.threads * 2 <= 1 << 16
    assert made.ptx.count("st.global.cs.v4") == 3 * config.accumulators // 8
