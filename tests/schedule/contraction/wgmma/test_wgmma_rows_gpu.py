"""Rows behind index maps with TMA and wgmma: windows of padded images as boxes of a tile's rows."""

import math
from dataclasses import replace

import pytest
from group_kernels import CUDA, Emitted, agrees, group
from nvcc import machine_code, needs_nvcc

from tests.schedule.contraction.gemm_graphs import with_numbers
from tests.schedule.contraction.window_graphs import op, partitioned
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.gpu.tile_forms import GATHERED
from tvm_fusion.schedule.contraction.tile.read_problem import gemm_problem
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaRowsConfig
from tvm_fusion.schedule.contraction.wgmma.operands.rows import tma_rows
from tvm_fusion.schedule.contraction.wgmma.space import wgmma_configs

pytestmark = pytest.mark.slow_beyond(2)

TEMPLATE = GpuContraction()
FEW = replace(CUDA.device, sm_count=2)  # so that a block computes several tiles
TOLERANCE = 2e-3
SMALL = {"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 1}


def heads(emit, y):
    rows, columns = (int(d) for d in y.ty.shape)
    return op.permute_dims(emit(op.reshape(y, [rows, columns // 16, 16])), [1, 0, 2])


def by_heads(y):
    return [y.reshape(len(y), -1, 16).transpose(1, 0, 2)]


def flipped(emit, x):
    return emit(op.permute_dims(x, [0, 2, 1, 3]))


# By name: image, window, columns, and the tile whose boxes are given: their runs and their number.
CASES = {
    "rows_of_windows": (((1, 15, 17, 64), 6, 32), (1, 1, 3, 6), 3),
    "padded": (((1, 8, 9, 64), 5, 64), (1, 1, 5, 5), 2),
    "batch": (((3, 10, 8, 64), 4, 32), (1, 1, 1, 4, 4), 4),
    "several_chunks": (((1, 9, 9, 136), 7, 40), (1, 1, 7, 7), 1),
    "wide_windows": (((1, 20, 33, 64), 16, 32), (1, 1, 4, 16), 1),
}


def configured(params, body, **tile):
    """The group with a configuration of the space."""
    claim = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    config = claim.details.config
    every = wgmma_configs(config.contraction, CUDA.device if tile["split_k"] > 1 else FEW)
    found = with_numbers(every, **tile)
    assert isinstance(found, WgmmaRowsConfig)
    return replace(claim, details=replace(claim.details, config=replace(config, gemm=found)))


def made(claim):
    (one,) = TEMPLATE.emit(claim, CUDA.tvm_target()).kernels
    return Emitted(claim.group, claim, one.func)


@pytest.mark.parametrize("name", CASES)
def test_boxes_of_windows(name):
    shape, runs, count = CASES[name]
    params, body, exact = partitioned(*shape)
    claim = configured(params, body, **SMALL)
    rows = claim.details.config.tile.operand_a
    assert (rows.runs, rows.count) == (runs, count)
    assert rows.maps[0].box[1:] == tuple(r for r in reversed(runs) if r > 1) + (1,) * (
        len(rows.dims) - sum(r > 1 for r in runs)
    )
    agrees(made(claim), params, exact, CUDA, TOLERANCE)


@pytest.mark.parametrize(
    "tile",
    [
        {"block_m": 128, "block_n": 64, "consumers": 2, "is_ping_pong": False, "split_k": 1},
        {"block_m": 64, "block_n": 64, "consumers": 2, "is_ping_pong": True, "split_k": 1},
        {"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 2},
    ],
    ids=["two_consumers", "ping_pong", "split_k"],
)
def test_tiles(tile):
    params, body, exact = partitioned((1, 8, 9, 392), 7, 128, heads, exact=(lambda x: x, by_heads))
    agrees(made(configured(params, body, **tile)), params, exact, CUDA, TOLERANCE)


def test_a_transposed_image():
    turn = (lambda x: x.transpose(0, 2, 1, 3), lambda y: [y])
    params, body, exact = partitioned((1, 8, 9, 64), 5, 64, turn=flipped, exact=turn)
    claim = configured(params, body, **SMALL)
    assert claim.details.config.tile.operand_a.maps[0].strides == (9 * 64, 64)
    agrees(made(claim), params, exact, CUDA, TOLERANCE)


def test_windows_that_are_rolled_are_no_boxes():
    def rolled(emit, x):
        low, high = (emit(op.strided_slice(x, [1], [a], [b])) for a, b in ((3, 8), (0, 3)))
        return emit(op.concat([low, high], 1))

    params, body, _ = partitioned((1, 8, 8, 64), 4, 64, turn=rolled)
    claim = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    problem = gemm_problem(claim.details.config.contraction, CUDA.device)
    assert tma_rows(problem, 64) is None
    # Elements that are gathered have their price, by which the planner keeps a copy apart.
    assert claim.flops >= GATHERED * 2 * 64 * 64 * 64


def test_conditions_other_than_bounds_are_no_boxes():
    def cut(emit, x):
        return emit(op.nn.pad(emit(op.strided_slice(x, [1], [0], [7])), [0, 0, 0, 1, 0, 0, 0, 0]))

    params, body, _ = partitioned((1, 8, 8, 64), 4, 64, turn=cut)
    claim = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    problem = gemm_problem(claim.details.config.contraction, CUDA.device)
    assert tma_rows(problem, 64) is None


def test_the_windows_of_a_vision_transformer_fill_tiles():
    """Of 32x32 pixels in windows of 14: 9 rows of a window are 126 of the 128 rows of a tile."""
    params, body, _ = partitioned((1, 32, 32, 768), 14, 2304)
    claim = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    tile = claim.details.config.tile
    assert isinstance(tile, WgmmaRowsConfig)
    assert claim.launches == 1
    assert tile.tile_rows >= 0.98 * tile.tile.block_m
    assert int(tile.grid.tiles_m) * tile.tile_rows == 9 * 14 * 14
    assert math.prod(tile.operand_a.runs) % 14 == 0


@needs_nvcc
@pytest.mark.cuda_toolchain
def test_machine_code():
    params, body, _ = partitioned((1, 8, 9, 64), 5, 64)
    code = machine_code({"main": made(configured(params, body, **SMALL)).func})["main"]
    assert code.stack_bytes == code.spilled_bytes == 0
    assert "cp.async.bulk.tensor.3d" in code.ptx
    assert "wgmma" in code.ptx
