"""Rows of depthwise convolutions cut along their length, against float64; the number of tasks."""

from dataclasses import replace

import pytest
import tvm_ffi
from group_kernels import CPU, group
from tvm import tirx

from tests.schedule.convolution.conv_cases import Conv, check, claimed
from tvm_fusion.schedule.convolution.template import CpuConvolution


def row(c, length, window, stride=1, padding=0, dilation=1, **changes):
    around = 0, padding, 0, padding
    given = (1, length), (1, window), (1, stride), around, (1, dilation)
    return Conv(c, c, *given, groups=c, **changes)


CASES = {
    "padding": row(20, 57, 3, padding=1, residual=True),
    "strided, two images": row(17, 131, 5, 3, 2, batch=2),
    "dilated, padding longer than a part": row(16, 61, 3, padding=16, dilation=8),
    "no padding": row(33, 50, 4),
    "rows of an image": Conv(24, 24, (2, 41), groups=24),
}


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("case", CASES)
def test_parts_against_float64(case):
    conv = CASES[case]
    claim = claimed(conv.params(), conv.body)
    for width, part in ((3, 2), (4, 3), (5, 1)):
        config = replace(claim.details.config, width=width, band=1, part=part)
        check(conv, claim=replace(claim, details=replace(claim.details, config=config)))


@pytest.mark.parametrize("cores", [2, 8, 16])
@pytest.mark.parametrize("conv", [row(16, 160000, 3, padding=1), row(40, 60001, 9, 2)])
def test_every_core_has_a_task(conv, cores):
    """Vectors of channels alone are fewer than the cores, and work is enough for all."""
    device = replace(CPU.device, cores=cores)
    claim = CpuConvolution().claim(group(conv.params(), conv.body), device)
    (made,) = CpuConvolution().emit(claim, CPU.tvm_target()).kernels
    loops = []
    tvm_ffi.structural_walk(made.func.body, (tirx.For, loops.append))
    (trips,) = (int(f.extent) for f in loops if f.kind == tirx.ForKind.PARALLEL)
    assert trips == claim.parallelism
    assert trips >= cores * 0.9 * -(-trips // cores), "cores are idle more than a tenth of the time"


def test_one_row_is_whole_where_channels_are_enough():
    conv = row(256, 64, 3, padding=1)
    device = replace(CPU.device, cores=2)
    claim = CpuConvolution().claim(group(conv.params(), conv.body), device)
    assert not claim.details.config.part
