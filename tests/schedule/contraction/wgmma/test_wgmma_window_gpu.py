"""Convolutions with TMA and wgmma: boxes of windows of an image, rectangles of pixels as tiles."""

import math
from dataclasses import replace

import numpy as np
import pytest
from emulator.tma import TensorMap
from group_kernels import CUDA
from nvcc import machine_code, needs_nvcc
from rounding import assert_sums_close
from tvm import relax

from tests.schedule.contraction.conv_graphs import NHWC, laid_out, launched, with_residual
from tests.schedule.contraction.gemm_graphs import changed, with_numbers
from tvm_fusion.schedule.contraction.gpu.space import KERNELS
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.tile.config import TileGemmConfig
from tvm_fusion.schedule.contraction.tile.read_problem import gemm_problem
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaWindowConfig
from tvm_fusion.schedule.contraction.wgmma.space import best_wgmma_tile, wgmma_configs

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
TEMPLATE = GpuContraction()
FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
SMALL = {"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 1}
CASES = {
    "3x3": ((1, 16, 9, 7), (24, 16, 3, 3), {}),
    "batch": ((3, 72, 5, 6), (40, 72, 3, 3), {}),
    "strided": ((2, 24, 11, 8), (16, 24, 3, 3), {"stride": 2}),
    "strided_without_padding": ((2, 8, 15, 13), (40, 8, 2, 4), {"stride": 2, "padding": (0, 0)}),
    "dilated": ((1, 16, 9, 9), (16, 16, 3, 3), {"padding": (2, 2), "dilation": 2}),
    "5x1": ((1, 16, 9, 9), (16, 16, 5, 1), {"padding": (2, 0)}),
    "pointwise_strided": ((3, 136, 11, 13), (40, 136, 1, 1), {"stride": 3, "padding": (0, 0)}),
    "several_chunks": ((1, 136, 6, 7), (80, 136, 3, 3), {}),
}


def build(shape, weight, options, constant=None, is_nchw=False):
    """The group, its inputs, the sums in float64, and those of absolute values.

    Images are channels-last; results, and what is added to them, are or are not.
    """
    fill = None if constant is None else lambda w: np.full_like(w, constant)
    params, body, arrays, exact, size = with_residual(shape, weight, options, weights=fill)
    order = (0, 1, 2, 3) if is_nchw else NHWC
    arrays = {"x": arrays["x"].transpose(NHWC), "r": arrays["r"].transpose(order)}
    members = laid_out(params, body, only=["x"] if is_nchw else None)
    return members, arrays, exact.transpose(order), size.transpose(order)


def of_tile(claim, device=FEW, **tile):
    """A claim with the configuration of a tile, which the design space has."""
    config = claim.details.config
    problem = gemm_problem(config.contraction, device)
    assert isinstance(best_wgmma_tile(problem, device), WgmmaWindowConfig)
    every = wgmma_configs(config.contraction, device)
    found = with_numbers(every, **tile)
    return replace(claim, details=replace(claim.details, config=replace(config, gemm=found)))


def check(made, tile, change=None):
    members, arrays, exact, size = made
    claim = of_tile(TEMPLATE.claim(members, CUDA.device), **tile)
    config = claim.details.config
    config = replace(config, gemm=changed(config.tile, **(change or {})))
    claim = replace(claim, details=replace(claim.details, config=config))
    result = launched(TEMPLATE.emit(claim, CUDA.tvm_target()), members, arrays)
    assert_sums_close(result, exact, size, config.tile.problem.k + 2)


@pytest.mark.parametrize("case", CASES)
def test_computes_the_convolution(case):
    check(build(*CASES[case]), SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c != "3x3"])
def test_results_along_pixels(case):
    """Images are operand B where results are in the order of the graph."""
    shape, weight, options = CASES[case]
    made = build(shape, (40, *weight[1:]), options, is_nchw=True)
    claim = of_tile(TEMPLATE.claim(made[0], CUDA.device), **SMALL)
    assert not claim.details.config.tile.is_of_rows
    check(made, SMALL)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    "tile",
    [
        {"block_m": 128, "block_n": 128, "consumers": 2, "is_ping_pong": False},
        {"block_m": 64, "block_n": 96, "consumers": 2, "is_ping_pong": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [16, 12])
def test_tiles_of_results_along_pixels(tile, width):
    """In vectors of 8 and of 4 pixels, of rectangles that reach beyond edges."""
    made = build((2, 136, 9, width), (72, 136, 3, 3), {}, is_nchw=True)
    check(made, tile)


@pytest.mark.parametrize(
    "tile",
    [
        {"block_m": 128, "block_n": 64, "consumers": 2, "is_ping_pong": False},
        {"block_m": 64, "block_n": 96, "consumers": 2, "is_ping_pong": True},
        {"block_m": 256, "block_n": 64, "consumers": 2, "split_k": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("case", ["batch", "strided"])
def test_tiles_and_roles(case, tile):
    check(build(*CASES[case]), tile)


def test_few_output_channels_take_small_tiles():
    """Of mma.sync, as a decoder's last convolution has three."""
    members, arrays, exact, size = build((1, 64, 9, 12), (3, 64, 3, 3), {}, is_nchw=True)
    claim = TEMPLATE.claim(members, CUDA.device)
    tile = claim.details.config.tile
    assert type(tile) is TileGemmConfig
    result = launched(TEMPLATE.emit(claim, CUDA.tvm_target()), members, arrays)
    assert_sums_close(result, exact, size, tile.problem.k + 2)


@pytest.mark.parametrize("is_nchw", [False, True])
@pytest.mark.parametrize("tile", [{}, {"block_m": 128, "consumers": 2, "is_ping_pong": False}])
def test_split_k(tile, is_nchw):
    """Of 9 taps and 2 chunks, by ranks that have whole steps alone."""
    made = build((3, 72, 5, 8), (40, 72, 3, 3), {}, is_nchw=is_nchw)
    check(made, {**SMALL, **tile}, {"split_k": 2, "stages": 4})


def test_weights_need_not_be_packed():
    """``[K, C, 1, 1]`` is contiguous along the terms."""
    members = build(*CASES["pointwise_strided"])[0]
    assert TEMPLATE.claim(members, CUDA.device).details.copies is None


def test_channels_beyond_the_last_are_zeros_in_both_operands():
    """Those of the next pixel and of the next tap, which may be infinite, are not multiplied."""
    members, arrays, exact, size = build((1, 72, 6, 6), (16, 72, 3, 3), {}, constant=0.5)
    arrays["x"] = arrays["x"].copy()
    arrays["x"][0, 5, 5, :] = np.inf  # of a corner: what does not see it stays finite
    claim = of_tile(TEMPLATE.claim(members, CUDA.device), **SMALL)
    result = launched(TEMPLATE.emit(claim, CUDA.tvm_target()), members, arrays)
    sees = np.zeros((6, 6), bool)
    sees[4:, 4:] = True
    assert np.isfinite(result[0, ~sees]).all()
    assert np.isinf(result[0, sees]).all()
    assert_sums_close(result[0, ~sees], exact[0, ~sees], size[0, ~sees], 9 * 72 + 2)


def test_what_boxes_do_not_bring():
    """Of 4 channels: pixels are no multiples of 16 bytes."""
    made = build((1, 4, 13, 9), (24, 4, 3, 3), {})
    claim = TEMPLATE.claim(made[0], CUDA.device)
    problem = gemm_problem(claim.details.config.contraction, CUDA.device)
    assert problem is None or best_wgmma_tile(problem, CUDA.device) is None


def test_boxes_fill_a_stage_and_span_what_the_accelerator_allows():
    members = build((2, 24, 64, 64), (16, 24, 3, 3), {"stride": 2})[0]
    contraction = TEMPLATE.claim(members, CUDA.device).details.config.contraction
    count = 0
    for config in wgmma_configs(contraction, CUDA.device):
        maps = [o.maps[0] for o in config.operands]
        assert sum(2 * math.prod(m.box) for m in maps) == config.tile.stage_bytes
        assert math.prod(config.window.rectangle) == config.tile.block_m
        spans = [(b - 1) * s + 1 for b, s in zip(maps[0].box, maps[0].steps, strict=True)]
        assert max(spans) <= 256
        count += 1
    assert count > 8


def test_a_tile_of_few_pixels_is_square():
    """Windows of its pixels overlap the most."""
    members = build((1, 8, 32, 32), (16, 8, 3, 3), {})[0]
    claim = of_tile(TEMPLATE.claim(members, CUDA.device), block_m=64)
    assert claim.details.config.tile.window.rectangle == (8, 8)


def test_design_spaces_are_plain_data():
    members = build(*CASES["batch"])[0]
    claim = of_tile(TEMPLATE.claim(members, CUDA.device), **SMALL)
    found = KERNELS.plain(claim.details.config.tile)
    assert found["kernel"] == "wgmma of windows"


def test_the_emulator_reads_boxes_with_steps():
    """Elements before the first and behind the last are zeros, as are those that a step misses."""
    view = np.arange(7 * 64, dtype="float16").reshape(7, 64)
    found = TensorMap(view, (5, 64), (2, 1)).read([0, -1])
    expected = np.zeros((5, 64), "float16")
    expected[1:4] = view[1:7:2]
    np.testing.assert_array_equal(found, expected)


@needs_nvcc
@pytest.mark.cuda_toolchain
def test_claimed_registers():
    """Also of a producer that divides by the chunks of a tap."""
    members = build((2, 320, 14, 14), (64, 320, 3, 3), {})[0]
    claim = of_tile(TEMPLATE.claim(members, CUDA.device), CUDA.device, block_m=128, block_n=64)
    (made,) = TEMPLATE.emit(claim, CUDA.tvm_target()).kernels
    code = machine_code({"main": made.func})["main"]
    tile = claim.details.config.tile
    assert code.stack_bytes == code.spilled_bytes == 0
    assert abs(tile.registers - code.registers) <= tile.registers / 4
    assert "cp.async.bulk.tensor.4d" in code.ptx
