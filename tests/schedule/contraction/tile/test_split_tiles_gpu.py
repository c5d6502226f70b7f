"""Epilogues over several columns of a product on tensor cores: gated layers, Q, K and V, rotary."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, arrays, check, close, compiles_for_cuda, group, run, tensor
from split_products import columns, gated, rotated, rotated_reference
from tvm import relax, tirx

from tests.schedule.contraction.gemm_graphs import changed, with_numbers
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.mma.default import tile_gemm_config
from tvm_fusion.schedule.contraction.mma.kernel import tile_gemm_gpu
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.contraction.tile.config import TileGemmConfig
from tvm_fusion.schedule.contraction.tile.results.vectors import result_vectors
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaConfig
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_config, wgmma_configs
from tvm_fusion.schedule.index.inline import inlined

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
TEMPLATE = GpuContraction()
AMPERE = parse("cuda:sm_80")
FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
TOLERANCE = 2e-3  # of results in float16


def three(m, k, n):
    """Three parts, and the sum itself."""
    given = [tensor("x", m, k, dtype="float16"), tensor("w", 3 * n, k, dtype="float16")]

    def body(emit, x, w):
        total = emit(op.matmul(x, emit(op.permute_dims(w)), "float32"))
        a, b, c = columns(emit, total, n, 2 * n)
        return [total, op.subtract(emit(op.multiply(a, b)), c)]

    def reference(x, w):
        y = x @ w.T
        a, b, c = np.split(y, 3, axis=-1)
        return [y, a * b - c]

    return given, body, reference


def turned_pairs(rows, k, dim):
    """Five heads, of which four are rotated: periods of two halves, and conditions on heads."""
    given = [tensor("x", 2, rows, k, dtype="float16"), tensor("w", 5 * dim, k, dtype="float16")]
    given += [tensor(name, rows, dim) for name in ("cos", "sin")]

    def body(emit, x, w, cos, sin):
        x, w = emit(op.astype(x, "float32")), emit(op.astype(w, "float32"))
        return rotated(emit, x, emit(op.permute_dims(w)), cos, sin)

    return given, body, lambda x, w, cos, sin: rotated_reference(x, w.T, cos, sin)


def transposed(m, k, n):
    """A gated product that is contiguous along M."""
    given, body, reference = gated(m, k, n)

    def turned(emit, x, w):
        return op.permute_dims(emit(body(emit, x, w)))

    return given, turned, lambda x, w: [reference(x, w)[0].T]


def pieces(m, k, n):
    """Columns of Q, K and V, each with a bias of its own."""
    given = [tensor("x", m, k, dtype="float16"), tensor("w", 3 * n, k, dtype="float16")]
    given += [tensor(name, n, dtype="float16") for name in "abc"]

    def body(emit, x, w, *biases):
        total = emit(op.matmul(x, emit(op.permute_dims(w)), "float32"))
        found = columns(emit, emit(op.astype(total, "float16")), n, 2 * n)
        return [op.add(y, b) for y, b in zip(found, biases, strict=True)]

    def reference(x, w, *biases):
        return [y + b for y, b in zip(np.split(x @ w.T, 3, axis=-1), biases, strict=True)]

    return given, body, reference


CASES = {
    "whole": gated(64, 64, 64),
    "bfloat16": gated(40, 64, 64, dtype="bfloat16"),
    "rows": gated((3, 25), 72, 64),
    "n_contiguous": gated(40, 72, 128, is_turned=False),
    "ragged": gated(75, 88, 104, "relu"),
    "ragged_n_contiguous": gated(75, 88, 104, "sigmoid", False),
    "bias": gated(70, 72, 72, "gelu_tanh", has_bias=True),
    "erf": gated(33, 64, 48, "gelu"),
    "odd": gated(77, 64, 51, has_bias=True),
    "along_m": transposed(72, 64, 40),
    "pieces": pieces(75, 72, 40),
    "pieces_of_four": pieces(75, 72, 36),
    "pieces_odd": pieces(41, 64, 27),
}
ONLY_MMA = {
    "odd_n_contiguous": gated(41, 67, 51, is_turned=False),
    "odd_terms": gated(37, 45, 24, "gelu", has_bias=True),
    "rotated": turned_pairs(23, 40, 32),
}
ONLY_WGMMA = {
    "three": three(70, 72, 96),
    "three_ragged": three(70, 72, 40),
    "periods": turned_pairs(23, 40, 64),
}


def contraction_of(case):
    members = group(*case[:2], CUDA)
    return members, analyse(members.program, inlined(members.program))


def agrees(case, func, members, seed):
    inputs = arrays(case[0], seed)
    wide = [x.astype("float64") for x in inputs.values()]
    tolerance = 2e-2 if case[0][0].ty.dtype == "bfloat16" else TOLERANCE
    close(run(func, members, inputs), case[2](*wide), tolerance)


def of_tile(contraction, **tile):
    found = wgmma_configs(contraction, FEW)
    return with_numbers(found, **tile)


@pytest.mark.parametrize("name", [*CASES, *ONLY_MMA])
def test_one_kernel_with_mma(name):
    case = (CASES | ONLY_MMA)[name]
    tolerance = 2e-2 if name == "bfloat16" else TOLERANCE
    claim, _ = check(TEMPLATE, *case, AMPERE, tolerance)
    assert claim.launches == 1
    assert isinstance(claim.details.config.tile, TileGemmConfig)


@pytest.mark.parametrize("name", [*CASES, *ONLY_WGMMA])
def test_one_kernel_with_wgmma(name):
    case = (CASES | ONLY_WGMMA)[name]
    members, contraction = contraction_of(case)
    block_n = 64 if name == "periods" else 96 if name in ONLY_WGMMA else 128
    config = of_tile(contraction, block_m=64, block_n=block_n, consumers=1)
    agrees(case, wgmma_gemm_gpu(members.program, config), members, 1)


@pytest.mark.parametrize(
    "tile",
    [
        {"block_m": 64, "block_n": 64, "consumers": 1},
        {"block_m": 128, "block_n": 128, "consumers": 2, "is_ping_pong": False},
        {"block_m": 128, "block_n": 192, "consumers": 2, "is_ping_pong": False},
        {"block_m": 64, "block_n": 256, "consumers": 2, "is_ping_pong": True},
        {"block_m": 256, "block_n": 64, "consumers": 2},
    ],
    ids=str,
)
def test_tiles_and_roles_of_wgmma(tile):
    case = gated(300, 136, 200, has_bias=True)
    members, contraction = contraction_of(case)
    agrees(case, wgmma_gemm_gpu(members.program, of_tile(contraction, **tile)), members, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"block_k": 64, "warps_k": 2},
        {"split_k": 4, "warps_k": 2, "block_k": 64, "stages": 2},
        {"block_m": 64, "warps_m": 2, "block_n": 128, "stages": 2},
        {"block_m": 16, "block_n": 32, "warps_n": 1, "stages": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_turned", [True, False])
def test_slices_and_clusters_of_mma(change, is_turned):
    case = gated(50, 200, 72, "relu", is_turned, True)
    members, contraction = contraction_of(case)
    small = {"block_m": 32, "block_n": 64, "block_k": 32, "warps_m": 1, "warps_n": 2}
    small |= {"warps_k": 1, "stages": 3, "split_k": 1}
    config = changed(tile_gemm_config(contraction, CUDA.device), **{**small, **change})
    agrees(case, tile_gemm_gpu(members.program, config), members, 3)


@pytest.mark.slow
def test_any_number_of_rows():
    case = gated(tirx.Var("rows", "int64"), 72, 64)
    claim, _ = check(TEMPLATE, *case, CUDA, TOLERANCE)
    assert claim.launches == 1
    members, contraction = contraction_of(case)
    config = of_tile(contraction, block_m=64, block_n=64, consumers=1)
    agrees(case, wgmma_gemm_gpu(members.program, config), members, 4)


def test_large_gated_products_take_wgmma():
    claim = TEMPLATE.claim(group(*gated(512, 4096, 14336)[:2], CUDA), CUDA.device)
    config = claim.details.config.tile
    assert isinstance(config, WgmmaConfig)
    assert config.problem.parts == 2
    assert config.tile.block_m * config.tile.block_n >= 128 * 128


@pytest.mark.parametrize(
    ("name", "width"), [("whole", 8), ("pieces", 8), ("pieces_of_four", 4), ("pieces_odd", 1)]
)
def test_results_are_stored_in_vectors(name, width):
    """Conditions that hold for whole vectors do not split them."""
    _, contraction = contraction_of(CASES[name])
    for config in (tile_gemm_config(contraction, FEW), wgmma_config(contraction, FEW)):
        assert result_vectors(config.problem).width == width


def test_three_parts_without_wgmma():
    """Warps have powers of two of columns."""
    refusal = TEMPLATE.claim(group(*three(70, 72, 96)[:2], AMPERE), AMPERE.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "epilogue_elsewhere"


def test_splits_of_rows():
    """The product of the transposed operands has them as columns."""
    params = [tensor("x", 66, 72, dtype="float16"), tensor("w", 72, 40, dtype="float16")]

    def body(emit, x, w):
        split = emit(op.split(emit(op.matmul(x, w, "float32")), 2, axis=0))
        return op.multiply(*(emit(relax.TupleGetItem(split, i)) for i in range(2)))

    def reference(x, w):
        return [np.prod(np.split(x @ w, 2), axis=0)]

    claim, _ = check(TEMPLATE, params, body, reference, AMPERE)
    assert claim.details.config.tile.problem.parts == 2


@pytest.mark.cuda_toolchain
def test_compiles_for_cuda():
    assert compiles_for_cuda(TEMPLATE, CASES | ONLY_WGMMA)
