"""Rows of pixels cut along their length, as of 1-D images, against float64; the number of tasks."""

from dataclasses import replace

import pytest
import tvm_ffi
from group_kernels import CPU, group
from tvm import tirx

from tests.schedule.convolution.conv_cases import Conv, check, claimed
from tvm_fusion.schedule.convolution.template import CpuConvolution


def row(c, k, length, window, stride=1, padding=0, dilation=1, **changes):
    """A 1-D convolution over plain layouts, if no blocks are asked for."""
    around, blocks = (0, padding, 0, padding), {"block_in": 0, "block_out": 0}
    given = (1, length), (1, window), (1, stride), around, (1, dilation)
    return Conv(c, k, *given, **{**blocks, **changes})


CASES = {
    "padding, two images": row(20, 48, 67, 3, padding=1, batch=2, residual=True),
    "strided, a last channel": row(33, 17, 131, 5, 3, 2),
    "dilated, padding longer than a part": row(17, 24, 61, 3, padding=16, dilation=8),
    "no padding, few channels": row(3, 40, 83, 7, 2, residual=True),
    "groups": row(32, 64, 59, 3, padding=1, groups=4),
    "groups within vectors": row(30, 60, 47, 3, padding=1, groups=3),
    "blocks": row(20, 33, 71, 3, padding=1, block_in=16, block_out=16, residual=True),
    "blocks in place, a window of one pixel": row(32, 32, 57, 1, 2, block_in=16, block_out=16),
    "blocks to plain": row(32, 24, 39, 3, 2, padding=1, block_in=16),
    "words of bytes": row(40, 24, 45, 3, padding=1, dtype="uint8"),
    "rows of an image": Conv(16, 24, (3, 41), residual=True),
    "rows of a plain image": Conv(18, 24, (2, 53), block_in=0, block_out=0),
}


def with_tiles(claim, **tiles):
    config = replace(claim.details.config, height=1, band=1, prefetches=0, **tiles)
    return replace(claim, details=replace(claim.details, config=config))


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize("case", CASES)
def test_parts_against_float64(case):
    conv = CASES[case]
    claim = claimed(conv.params(), conv.body)
    for width, part, chunk in ((3, 2, 1), (4, 3, 2)):
        tiled = with_tiles(claim, width=width, part=part, vectors=1, chunk=chunk)
        assert tiled.details.config.columns(conv.out_size[1]) == width * part
        check(conv, claim=tiled)


def parallel_trips(conv, cores):
    """The trips of the kernel's parallel loop, for a CPU of so many cores."""
    device = replace(CPU.device, cores=cores)
    claim = CpuConvolution().claim(group(conv.params(), conv.body), device)
    (made,) = CpuConvolution().emit(claim, CPU.tvm_target()).kernels
    loops = []
    tvm_ffi.structural_walk(made.func.body, (tirx.For, loops.append))
    trips = [int(f.extent) for f in loops if f.kind == tirx.ForKind.PARALLEL]
    assert trips == [claim.parallelism]
    return trips[0]


ROWS = {
    "few channels": row(32, 16, 4000, 3, padding=1),
    "as many as a vector": row(64, 8, 8001, 5, 2, dtype="float32"),
    "dilated": row(64, 32, 3001, 3, padding=8, dilation=8),
    "groups": row(64, 64, 2000, 3, padding=1, groups=4),
    "two rows": Conv(64, 16, (2, 900)),
}


@pytest.mark.parametrize("cores", [2, 8, 16])
@pytest.mark.parametrize("case", ROWS)
def test_every_core_has_a_task(case, cores):
    """Channels and rows alone are fewer than the cores."""
    trips = parallel_trips(ROWS[case], cores)
    busiest = -(-trips // cores)
    assert trips >= cores * 0.9 * busiest, "cores are idle more than a tenth of the time"


def test_parts_are_chosen_for_the_caches():
    """Of an image that no cache near a core holds, a task reads a part, even on one core."""
    long, short = row(512, 512, 3199, 3, 2), row(64, 64, 99, 3, 2)
    assert claimed(long.params(), long.body).details.config.part
    one = replace(CPU.device, cores=1)
    claim = CpuConvolution().claim(group(short.params(), short.body), one)
    assert not claim.details.config.part


def test_images_of_one_row_are_copied_into_blocks_where_they_are_read_often():
    wide, narrow = row(64, 128, 200, 3), row(64, 8, 200, 3, 3)
    assert claimed(wide.params(), wide.body).details.problem.is_packed
    assert not claimed(narrow.params(), narrow.body).details.problem.is_packed
    blocked = replace(wide, block_in=16)
    assert not claimed(blocked.params(), blocked.body).details.problem.is_packed
