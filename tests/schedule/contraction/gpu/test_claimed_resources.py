"""Registers and shared memory that skinny and tiled GEMM claim, against ptxas."""

import pytest
from group_kernels import CUDA, group, tensor
from nvcc import machine_code, needs_nvcc
from quantised_products import along, int4, int8
from split_products import gated
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction

AMPERE = parse("cuda:sm_80")
TEMPLATE = GpuContraction()


def across(rows, terms, columns, dtype):
    """A product with a weight that is contiguous along N."""
    given = [tensor("x", rows, terms, dtype=dtype), tensor("w", terms, columns, dtype=dtype)]
    return given, lambda emit, x, w: relax.op.matmul(x, w, "float32")


CASES = {
    "gemv_k_contiguous": along(1, 4096, 14336),
    "gemv_n_contiguous": across(1, 4096, 14336, "float16"),
    "gemv_cp_async": across(1, 4096, 4096, "float32"),
    "four_rows": across(4, 4096, 4096, "float32"),
    "sixteen_rows": across(16, 4096, 4096, "float32"),
    "mma": along(8, 4096, 14336),
    "mma_n_contiguous": across(8, 4096, 14336, "float16"),
    "int4": int4(1, 4096, 14336, 1, True, size=128),
    "int8": int8(8, 4096, 4096, True),
}


# On tensor cores, for sm_80: without wgmma.
TILED = {
    "large_tiles": across(4096, 4096, 4096, "float16"),
    "small_tiles": across(128, 768, 768, "bfloat16"),
    "k_contiguous": along(512, 3072, 1024),
    "few_rows": across(16, 4096, 14336, "float16"),
    "ragged": across(197, 776, 3080, "float16"),
    "gated": gated(512, 4096, 14336)[:2],
    "gated_n_contiguous": gated(64, 4096, 1368, is_turned=False, has_bias=True)[:2],
}


def compiled(cases, spec):
    """Each case's claim, and what one call of nvcc makes of all of their kernels."""
    claims, functions = {}, {}
    for name, (params, body, *_) in cases.items():
        claims[name] = TEMPLATE.claim(group(params, body, spec), spec.device)
        # Sums of split-K may be added up by a second kernel.
        functions[name] = TEMPLATE.emit(claims[name], spec.tvm_target()).kernels[0].func
    codes = machine_code(functions, *spec.archs)
    return {name: (claims[name], codes[name]) for name in cases}


@pytest.fixture(scope="module")
def tiled():
    return compiled(TILED, AMPERE)


@pytest.fixture(scope="module")
def skinny():
    return compiled(CASES, CUDA)


@needs_nvcc
@pytest.mark.cuda_toolchain
@pytest.mark.parametrize("name", TILED)
def test_tiled_gemm_within_a_quarter_of_ptxas(name, tiled):
    claim, made = tiled[name]
    assert claim.details.config.tile is not None
    assert made.stack_bytes == made.spilled_bytes == 0
    assert abs(claim.registers - made.registers) <= made.registers / 4


@needs_nvcc
@pytest.mark.cuda_toolchain
@pytest.mark.parametrize("name", CASES)
def test_within_a_quarter_of_ptxas(name, skinny):
    """Shared memory that TVM reuses between phases is claimed twice, at most an eighth."""
    claim, made = skinny[name]
    assert made.spilled_bytes == 0
    assert abs(claim.registers - made.registers) <= made.registers / 4
    config = claim.details.config.skinny
    dynamic = config.cp_async_stages * config.parts * config.tile.vectors * config.threads * 16
    static = made.shared_bytes
    assert static <= claim.shared_bytes - dynamic <= static * 9 / 8
