"""GEMM with TMA and wgmma: right for what TMA copies, on a device of few multiprocessors."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, arrays, close, group, run, tensor
from tvm import relax, tirx

from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.operands import analyse
from tvm_fusion.schedule.contraction.template_gpu import GpuContraction
from tvm_fusion.schedule.contraction.wgmma_config import WgmmaConfig
from tvm_fusion.schedule.contraction.wgmma_gemm_gpu import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma_model import wgmma_config, wgmma_configs
from tvm_fusion.schedule.inline import inlined

op = relax.op
FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
TILE = {"block_m": 64, "block_n": 64, "consumers": 1}


def product(m, k, n, a_is_turned=False, b_is_turned=False, dtype="float16", batch=()):
    given = [
        tensor("x", *batch, *((k, m) if a_is_turned else (m, k)), dtype=dtype),
        tensor("w", *batch, *((n, k) if b_is_turned else (k, n)), dtype=dtype),
    ]
    last = [*range(len(batch)), len(batch) + 1, len(batch)]

    def body(emit, x, w):
        a = emit(op.permute_dims(x, last)) if a_is_turned else x
        b = emit(op.permute_dims(w, last)) if b_is_turned else w
        return op.matmul(a, b, "float32")

    def reference(x, w):
        a, b = (x.swapaxes(-1, -2) if a_is_turned else x, w.swapaxes(-1, -2) if b_is_turned else w)
        return [a @ b]

    return given, body, reference


def with_epilogue(m, k, n):
    """Bias, ReLU and a residual, and the sum itself as a second result."""
    given = [tensor("x", m, k, dtype="float16"), tensor("w", n, k, dtype="float16")]
    given += [tensor("b", n, dtype="float16"), tensor("r", m, n, dtype="float16")]

    def body(emit, x, w, b, r):
        total = emit(op.matmul(x, emit(op.permute_dims(w)), "float32"))
        biased = emit(op.add(total, emit(op.astype(b, "float32"))))
        return [biased, op.add(emit(op.astype(emit(op.nn.relu(biased)), "float16")), r)]

    return given, body, lambda x, w, b, r: [x @ w.T + b, np.maximum(x @ w.T + b, 0) + r]


def heads(rows, width, count, size):
    """Columns of attention heads, stored head by head."""
    given = [tensor("x", 2, rows, width, dtype="float16")]
    given.append(tensor("w", width, count * size, dtype="float16"))

    def body(emit, x, w):
        y = emit(op.reshape(emit(op.matmul(x, w, "float32")), (2, rows, count, size)))
        return op.permute_dims(y, [0, 2, 1, 3])

    def reference(x, w):
        return [(x @ w).reshape(2, rows, count, size).transpose(0, 2, 1, 3)]

    return given, body, reference


CASES = {
    "whole": product(128, 128, 128),
    "ragged": product(72, 200, 88),
    "odd_rows": product(77, 72, 88),
    "odd_columns": product(72, 72, 83, b_is_turned=True),
    "a_turned": product(136, 72, 88, True),
    "b_turned": product(72, 136, 88, False, True),
    "both_turned": product(72, 104, 96, True, True),
    "bfloat16": product(80, 96, 64, dtype="bfloat16"),
    "epilogue": with_epilogue(72, 136, 72),
    "epilogue_odd": with_epilogue(75, 136, 67),
    "epilogue_even": with_epilogue(75, 136, 66),
    "heads": heads(40, 64, 3, 32),
    "batch": product(72, 64, 40, batch=(3,)),
    "batches": product(65, 64, 40, False, True, batch=(2, 2)),
}


def contraction_of(params, body):
    members = group(params, body, CUDA)
    return members, analyse(members.program, inlined(members.program))


def agrees(name, members, func, params, reference, seed):
    inputs = arrays(params, seed)
    wide = [x.astype("float64") for x in inputs.values()]
    close(run(func, members, inputs), reference(*wide), 2e-3 if "epilogue" in name else 2e-5)


def of_tile(contraction, **tile):
    """The configuration of a tile, which the design space has."""
    found = wgmma_configs(contraction, FEW)
    return next(c for c in found if all(getattr(c, k) == v for k, v in tile.items()))


@pytest.mark.parametrize("name", CASES)
def test_computes_the_product(name):
    params, body, reference = CASES[name]
    members, contraction = contraction_of(params, body)
    config = of_tile(contraction, **TILE)
    agrees(name, members, wgmma_gemm_gpu(members.program, config), params, reference, 0)


@pytest.mark.parametrize(
    "tile",
    [
        {"block_m": 128, "block_n": 64, "consumers": 2, "is_ping_pong": False},
        {"block_m": 128, "block_n": 96, "consumers": 1},
        {"block_m": 64, "block_n": 64, "consumers": 2, "is_ping_pong": True},
        {"block_m": 256, "block_n": 128, "consumers": 2},
    ],
    ids=str,
)
def test_tiles_and_roles(tile):
    params, body, reference = with_epilogue(300, 136, 200)
    members, contraction = contraction_of(params, body)
    config = of_tile(contraction, **tile)
    agrees("epilogue", members, wgmma_gemm_gpu(members.program, config), params, reference, 1)


def test_any_number_of_rows():
    params, body, reference = product(tirx.Var("rows", "int64"), 72, 64, b_is_turned=True)
    members, contraction = contraction_of(params, body)
    config = of_tile(contraction, **TILE)
    agrees("rows", members, wgmma_gemm_gpu(members.program, config), params, reference, 3)


@pytest.mark.parametrize("columns", [201, 198])
@pytest.mark.parametrize(
    "tile",
    [
        {"block_m": 128, "block_n": 256, "consumers": 2},
        {"block_m": 64, "block_n": 64, "consumers": 2, "is_ping_pong": True},
    ],
    ids=str,
)
def test_unaligned_rows_of_results_are_staged(tile, columns):
    params, body, reference = with_epilogue(150, 136, columns)
    members, contraction = contraction_of(params, body)
    config = of_tile(contraction, **tile)
    assert config.is_staged
    assert config.shared_bytes <= FEW.shared_memory_per_block
    agrees("epilogue", members, wgmma_gemm_gpu(members.program, config), params, reference, 6)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (product(72, 67, 88), "rows of A are no multiples of 16 bytes"),
        (product(72, 64, 83), "nor those of B"),
        (product(72, 64, 64, dtype="float32"), "another type"),
    ],
    ids=["odd_k", "odd_n", "float32"],
)
def test_what_the_accelerator_cannot_copy(case, reason):
    _, contraction = contraction_of(*case[:2])
    assert wgmma_config(contraction, CUDA.device) is None, reason


@pytest.mark.parametrize("spec", ["cuda:sm_80", "cuda:sm_90", "rocm:gfx942"])
def test_devices_without_the_instructions(spec):
    _, contraction = contraction_of(*CASES["whole"][:2])
    assert wgmma_config(contraction, parse(spec).device) is None


def test_large_products_are_claimed():
    params, body, _ = product(4096, 4096, 4096)
    claim = GpuContraction().claim(group(params, body, CUDA), CUDA.device)
    config = claim.details["config"].tile
    assert isinstance(config, WgmmaConfig)
    assert config.block_m * config.block_n >= 128 * 128
    assert claim.shared_bytes <= CUDA.device.shared_memory_per_block


def test_few_rows_are_not():
    params, body, _ = product(16, 4096, 4096)
    claim = GpuContraction().claim(group(params, body, CUDA), CUDA.device)
    assert not isinstance(claim.details["config"].tile, WgmmaConfig)
