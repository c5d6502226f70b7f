"""GEMM with TMA and wgmma: right for what TMA copies, on a device of few multiprocessors."""

import math
from dataclasses import replace

import pytest
from group_kernels import CUDA, group
from tvm import tirx

from tests.schedule.contraction.gemm_graphs import (
    changed,
    computes,
    contraction_of,
    heads,
    product,
    split,
    with_epilogue,
    with_numbers,
)
from tvm_fusion.core.tir.loops import index
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.tile.results.vectors import result_vectors
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaConfig
from tvm_fusion.schedule.contraction.wgmma.kernel import wgmma_gemm_gpu
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_config, wgmma_configs

pytestmark = pytest.mark.slow_beyond(2)

FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
TILE = {"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 1}


CASES = {
    "whole": product(128, 128, 128),
    "ragged": product(72, 200, 88),
    "odd_rows": product(77, 72, 88),
    "odd_columns": product(72, 72, 83, b_is_turned=True),
    "a_turned": product(136, 72, 88, True),
    "b_turned": product(72, 136, 88, False, True),
    "both_turned": product(72, 104, 96, True, True),
    "bfloat16": product(80, 96, 64, dtype="bfloat16"),
    "epilogue": with_epilogue(72, 136, 72, b_is_turned=True),
    "epilogue_odd": with_epilogue(75, 136, 67, b_is_turned=True),
    "epilogue_even": with_epilogue(75, 136, 66, b_is_turned=True),
    "split": split(72, 72, 24, 64, 40),
    "split_odd": split(70, 72, 20, 52, 24),
    "heads": heads(40, 64, 3, 32),
    "batch": product(72, 64, 40, batch=(3,)),
    "batches": product(65, 64, 40, False, True, batch=(2, 2)),
}


def of_tile(contraction, **tile):
    """The configuration of a tile, which the design space has."""
    found = wgmma_configs(contraction, FEW)
    return with_numbers(found, **tile)


@pytest.mark.parametrize("name", CASES)
def test_computes_the_product(name):
    members, contraction = contraction_of(*CASES[name][:2])
    config = of_tile(contraction, **TILE)
    computes(wgmma_gemm_gpu(members.program, config), members, CASES[name], 0)


@pytest.mark.parametrize(("columns", "width"), [((24, 64, 40), 8), ((20, 52, 24), 4), ((3, 5), 1)])
def test_parts_of_a_split_are_stored_in_vectors(columns, width):
    params, body, _ = split(72, 72, *columns)
    _, contraction = contraction_of(params, body)
    config = of_tile(contraction, **TILE)
    assert result_vectors(config.problem).width == width


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
    case = with_epilogue(300, 136, 200, b_is_turned=True)
    members, contraction = contraction_of(*case[:2])
    config = of_tile(contraction, **tile)
    computes(wgmma_gemm_gpu(members.program, config), members, case, 1)


def test_any_number_of_rows():
    case = product(tirx.Var("rows", "int64"), 72, 64, b_is_turned=True)
    members, contraction = contraction_of(*case[:2])
    config = of_tile(contraction, **TILE)
    computes(wgmma_gemm_gpu(members.program, config), members, case, 3)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
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
    case = with_epilogue(150, 136, columns, b_is_turned=True)
    members, contraction = contraction_of(*case[:2])
    config = of_tile(contraction, **tile)
    assert config.is_staged
    assert config.shared_bytes <= FEW.shared_memory_per_block
    computes(wgmma_gemm_gpu(members.program, config), members, case, 6)


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
    config = claim.details.config.tile
    assert isinstance(config, WgmmaConfig)
    assert config.tile.block_m * config.tile.block_n >= 128 * 128
    assert claim.shared_bytes <= CUDA.device.shared_memory_per_block


def test_few_rows_are_not():
    params, body, _ = product(16, 4096, 4096)
    claim = GpuContraction().claim(group(params, body, CUDA), CUDA.device)
    assert not isinstance(claim.details.config.tile, WgmmaConfig)


@pytest.mark.parametrize(
    ("tile", "change"),
    [
        ({}, {"split_k": 2, "stages": 3}),
        ({}, {"split_k": 4, "stages": 4}),
        ({"block_m": 128, "consumers": 2, "is_ping_pong": False}, {"split_k": 2, "stages": 3}),
        ({"block_m": 128}, {"split_k": 2, "stages": 3}),
    ],
    ids=str,
)
def test_split_k(tile, change):
    case = with_epilogue(150, 520, 136)
    members, contraction = contraction_of(*case[:2])
    config = changed(of_tile(contraction, **{**TILE, **tile}), **change)
    computes(wgmma_gemm_gpu(members.program, config), members, case, 4)


def test_few_long_sums_are_split():
    """As many blocks as a device runs at once, and enough of K for a pipeline."""
    _, contraction = contraction_of(*product(128, 3072, 768)[:2])
    config = wgmma_config(contraction, CUDA.device)
    assert config.tile.split_k > 1
    assert int(config.blocks) <= CUDA.device.sm_count
    assert 3 <= config.tile.stages <= config.grid.k_tiles


@pytest.mark.parametrize(
    ("shape", "group_m"),
    [((1024, 3072, 768), 1), ((128, 768, 2304), 8), ((4096, 4096, 4096), 8)],
)
def test_tall_grids_go_along_rows_of_tiles(shape, group_m):
    _, contraction = contraction_of(*product(*shape)[:2])
    assert wgmma_config(contraction, CUDA.device).tile.group_m == group_m


@pytest.mark.parametrize("b_is_turned", [False, True])
def test_boxes_fill_a_stage(b_is_turned):
    """A consumer waits for all bytes of a stage: those that no box brings never come."""
    _, contraction = contraction_of(*product(512, 512, 384, b_is_turned=b_is_turned)[:2])
    narrow = 0
    for config in wgmma_configs(contraction, CUDA.device):
        firsts = [index(0)], config.first_columns(index(0))
        boxes = [
            o.maps[own].box
            for o, first in zip(config.operands, firsts, strict=True)
            for _, own, _ in o.boxes({}, first, index(0))
        ]
        assert sum(2 * math.prod(box) for box in boxes) == config.tile.stage_bytes
        narrow += config.tile.block_n % 64 != 0
    assert bool(narrow) == b_is_turned


@pytest.mark.parametrize(("columns", "blocks"), [(1920, [120]), (2048, [])])
def test_clusters_of_four_run_at_once(columns, blocks):
    """Groups of multiprocessors are no multiples of four: a grid of all would take two rounds."""
    _, contraction = contraction_of(*product(256, 8192, columns)[:2])
    found = {int(c.blocks) for c in wgmma_configs(contraction, CUDA.device) if c.tile.split_k == 4}
    assert sorted(found) == blocks
